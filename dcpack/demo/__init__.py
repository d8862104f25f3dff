"""The demo: see, and prove, what dcpack does, on real documents, on any machine."""

from dcpack.demo.options import DemoOptions
from dcpack.demo.run import DemoResult, load_documents, prove, run_demo

__all__ = ["DemoOptions", "DemoResult", "load_documents", "prove", "run_demo"]
