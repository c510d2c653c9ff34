"""Sentences as a treebank has them."""

SENTENCES = [
    ["rain", "falls", "."],
    ["a", "dog", "runs", "outside", "and", "a", "cat", "runs"],
    ["we", "met"],
    ["it", "is", "\u201cwet\u201d", "."],
]
WORDS = sum(map(len, SENTENCES))


def conllu(sentences):
    lines = (
        "".join(f"{i}\t{word}\t_\t_\t_\t_\t_\t_\t_\t_\n" for i, word in enumerate(words, 1)) for words in sentences
    )
    return "\n".join(lines)
