"""The seven cases of the paper and the answers of its networks (Tables 3, 4 and 5).

The paper is Ryu, Moon, Kim & Cho, "Personality Analysis using LSTM and Bi-LSTM", 융복합지식학회, autumn 2023, pages
77-80. It prints the certainty of each answer; `answered` converts this to the probability of E.
"""

CASES = (  # (number, text, label); the paper labels "사람" (people) as neutral
    ("1.1", "혼자", "I"),
    ("1.2", "친구", "E"),
    ("2", "사람", "neutral"),
    ("3.1", "친한 친구와만 노는 편이다.", "I"),
    ("3.2", "많은 친구와만 노는 편이다.", "E"),
    ("4.1", "주목받은 후 즉시는 살짝 부끄럽지만, 나름 주목받는 것을 좋아합니다.", "E"),
    ("4.2", "예기치 못한 상황이면 살짝 당황스러움..", "I"),
)

ANSWERED = {  # (bidirectional, pretrained, words) → answer and certainty in %, in the order of CASES
    (False, False, "content"): "I 80.47  E 78.10  I 52.85  E 61.89  I 83.60  I 97.79  I 84.09",  # Simple-LSTM
    (False, True, "content"): "I 95.67  E 97.18  E 94.65  I 97.66  E 74.04  I 75.82  I 99.85",  # Fa-LSTM
    (True, False, "all"): "I 73.15  E 93.99  E 70.57  I 72.75  E 99.87  I 93.76  I 99.87",  # Simple-BLSTM
    (True, True, "content"): "I 91.37  E 99.33  E 97.31  I 66.29  E 98.79  E 70.19  I 98.83",  # Fa-extr-BLSTM
    (True, True, "all"): "I 80.59  E 90.54  E 61.94  I 58.92  E 98.56  E 91.92  I 68.57",  # Fa-whl-BLSTM
}


def answered(bidirectional: bool, pretrained: bool, words: str) -> list[tuple[str, float]] | None:
    """Return the published letter and probability of E for each case, or None if the paper lacks this network."""
    printed = ANSWERED.get((bidirectional, pretrained, words))
    if printed is None:
        return None
    letters, certainties = printed.split()[::2], printed.split()[1::2]
    sure = [float(certainty) / 100 for certainty in certainties]
    return [(letter, round(p if letter == "E" else 1 - p, 4)) for letter, p in zip(letters, sure, strict=True)]
