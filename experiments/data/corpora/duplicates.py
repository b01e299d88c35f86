"""Count evaluated sentences that occur, character by character, in the training set. Imports no torch."""

from collections.abc import Iterable, Mapping, Sequence

Pair = tuple[str, str]


def seen_in_train(train: Iterable[Pair], sets: Mapping[str, Sequence[Pair]]) -> dict[str, dict[str, int]]:
    """Set → how many of its sources, of its targets and of its whole pairs occur in `train`.

    Memory is that of the evaluated sets; `train` is read once, as a stream.
    """
    sources = {source for pairs in sets.values() for source, _ in pairs}
    targets = {target for pairs in sets.values() for _, target in pairs}
    whole = {pair for pairs in sets.values() for pair in pairs}
    seen_sources, seen_targets, seen_pairs = set[str](), set[str](), set[Pair]()
    for pair in train:
        source, target = pair
        if source in sources:
            seen_sources.add(source)
            if pair in whole:
                seen_pairs.add(pair)
        if target in targets:
            seen_targets.add(target)
    return {
        name: {
            "source": sum(source in seen_sources for source, _ in pairs),
            "target": sum(target in seen_targets for _, target in pairs),
            "pair": sum(pair in seen_pairs for pair in pairs),
        }
        for name, pairs in sets.items()
    }
