"""A scheduler of one's own: longest first, each sequence alone on the fewest ranks that hold it."""

from dcpack.errors import InfeasibleError
from dcpack.scheduling import Group, MicroBatch, Problem


class OneEach:
    """Fills micro-batches with single sequences; what is left of a micro-batch are dummies of one rank."""

    name = "one_each"

    def usable_cp_sizes(self, legal: tuple[int, ...]) -> tuple[int, ...]:
        """All legal sizes; 1 must be among them, as dummies take it."""
        if legal[0] != 1:
            raise InfeasibleError(f"one_each needs CP size 1 among the legal ones, got {legal}")
        return legal

    def schedule(self, problem: Problem) -> list[MicroBatch]:
        """Open a micro-batch where a sequence does not fit in the ranks that are left."""
        microbatches: list[MicroBatch] = []
        left = 0
        for item in problem.longest_first.tolist():
            size = problem.smallest_size(Group(1, [item]))
            if size is None:
                raise InfeasibleError(f"no CP size holds {problem.describe([item])[0]}")
            if size > left:
                microbatches.append([])
                left = problem.num_ranks
            microbatches[-1].append(Group(size, [item]))
            left -= size
        while len(microbatches) % problem.microbatch_multiple:
            microbatches.append([])
        for groups in microbatches:
            idle = problem.num_ranks - sum(group.cp_size for group in groups)
            if idle and problem.on_empty == "error":
                raise InfeasibleError(f"{idle} of {problem.num_ranks} ranks have no sequence; pass on_empty='dummy'")
            groups += [Group(1, []) for _ in range(idle)]
        return microbatches
