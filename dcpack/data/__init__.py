"""Where samples come from."""

from dcpack.data.text import END_OF_DOCUMENT, TextDocuments, byte_tokens, find_text_files, installed_text_folders

__all__ = ["END_OF_DOCUMENT", "TextDocuments", "byte_tokens", "find_text_files", "installed_text_folders"]
