"""Texts as the user's turn of a conversation, in the model's own chat template.

The template is rendered by transformers in its sandbox. Its tokens are not of the text: as with [CLS] and [SEP], no
row is read there.
"""

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from repsim_cli.base.bounded import limit_work
from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import refuse

STAND_IN = "\ue000 stands for the text \ue001"  # characters that no template has
# the date that templates write, so that a run reads the same tokens on any day
TODAY, NOW = datetime.date(2024, 7, 26), re.compile(r"""strftime_now\((['"])(.*?)\1\)""")
TEMPLATE, FIRST, SECOND = -1, 0, 1  # what a token is of


class Encoded(dict[str, Any]):
    """What a tokenizer returns, and which of the texts each token of an example is of."""

    parts: list[list[int | None]]

    def sequence_ids(self, example: int) -> list[int | None]:
        return self.parts[example]


class RenderedChat(NamedTuple):
    """A rendered conversation. spans: the first character of each text in it, and the one behind the last."""

    rendered: str
    spans: list[tuple[int, int]]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Chat:
    """A tokenizer that puts a text, or a pair of texts on two lines, into the chat template.

    It is called like the tokenizer, which must be fast. Offsets count from the beginning of each text.
    """

    tokenizer: Any
    before: str
    after: str

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        example = self(*["a"] * (1 + pair))
        return len(example["input_ids"]) - example.sequence_ids(0).count(FIRST) - example.sequence_ids(0).count(SECOND)

    def __call__(
        self, *texts: str | Sequence[str], truncation: bool = False, max_length: int | None = None, **settings: Any
    ) -> Encoded:
        single = isinstance(texts[0], str)
        examples: list[tuple[str, ...]] = [texts] if single else list(zip(*texts, strict=True))  # type: ignore[list-item]
        turns = [self.turn(example) for example in examples]
        given = self.tokenizer(
            [turn.rendered for turn in turns], add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        made: dict[str, list[Any]] = {"input_ids": [], "special_tokens_mask": [], "offset_mapping": []}
        encoded = Encoded(made)
        encoded.parts = []
        for turn, ids, offsets in zip(turns, given["input_ids"], given["offset_mapping"], strict=True):
            part, places = self._locate(turn, np.asarray(ids), np.asarray(offsets).reshape(-1, 2))
            kept = _cut(part, max_length) if truncation and max_length is not None else np.ones(len(part), bool)
            made["input_ids"].append(np.asarray(ids)[kept].tolist())
            made["special_tokens_mask"].append((part[kept] == TEMPLATE).astype(int).tolist())
            made["offset_mapping"].append([tuple(place) for place in places[kept].tolist()])
            encoded.parts.append([None if p == TEMPLATE else int(p) for p in part[kept]])
        if single:
            encoded.update({name: values[0] for name, values in made.items()})
        return encoded

    def turn(self, texts: tuple[str, ...]) -> RenderedChat:
        """Renders a turn that says these texts, one a line. Raises BadInput where the template changes more of them
        than the white space around them."""
        content = "\n".join(texts)
        rendered = _render(self.tokenizer, content)
        begin, end = len(self.before), len(rendered) - len(self.after)
        inside = rendered.startswith(self.before) and rendered.endswith(self.after) and begin <= end
        if not inside or rendered[begin:end].strip() != content.strip():
            raise BadInput(
                f"data.chat: the template of '{_name(self.tokenizer)}' changes the text, got {rendered!r:.160} for "
                f"{content!r:.60}; set data.chat=false"
            )
        begin += rendered[begin:end].find(content.strip()) - content.find(content.strip())
        spans = []
        for text in texts:
            spans.append((begin, begin + len(text)))
            begin += len(text) + 1
        return RenderedChat(rendered, spans, texts)

    def _locate(self, turn: RenderedChat, ids: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Finds the text that each token is of, and its characters there. A token that also covers characters of the
        template is of the text if those are white space."""
        part, places = np.full(len(ids), TEMPLATE), np.zeros((len(ids), 2), int)
        limits = len(self.before), len(turn.rendered) - len(self.after)
        for number, (begin, end) in enumerate(turn.spans):
            first, last = max(begin, limits[0]), min(end, limits[1])
            for token in np.flatnonzero((offsets[:, 0] < last) & (offsets[:, 1] > first)):
                a, b = offsets[token]
                start, stop = max(a, first), min(b, last)
                around = turn.rendered[a:start] + turn.rendered[stop:b]
                if around.strip() or (around and not turn.rendered[start:stop].strip()):
                    continue
                part[token], places[token] = number, (start - begin, stop - begin)
        return part, places


def _cut(part: np.ndarray, most: int) -> np.ndarray:
    """Marks the tokens to keep where there are too many: all of the template, and of the longer text the first ones."""
    kept = np.ones(len(part), bool)
    for _ in range(max(len(part) - most, 0)):
        counts = [(kept & (part == text)).sum() for text in (FIRST, SECOND)]
        kept[np.flatnonzero(kept & (part == int(np.argmax(counts))))[-1:]] = False
    return kept


def check_chat(tokenizer: Any) -> Chat:
    """Raises BadInput where the tokenizer has no chat template, or tells no offsets."""
    if not getattr(tokenizer, "chat_template", None):
        raise BadInput(
            f"tokenizer: it has no chat template, got '{_name(tokenizer)}'; use a model tuned for chat, or set "
            "data.chat=false"
        )
    if not tokenizer.is_fast:
        raise BadInput(
            f"tokenizer: the text is found by character offsets, got {type(tokenizer).__name__} without any; "
            "save a fast tokenizer (tokenizer.json), or set data.chat=false"
        )
    before, text, after = _render(tokenizer, STAND_IN).partition(STAND_IN)
    if not text:
        raise BadInput(
            f"tokenizer: the chat template does not repeat the text, got {before!r:.160} of '{_name(tokenizer)}'; "
            "set data.chat=false"
        )
    return Chat(tokenizer, before, after)


def _render(tokenizer: Any, content: str) -> str:
    with refuse("tokenizer: the chat template cannot be used", _name(tokenizer), "set data.chat=false"), limit_work():
        return tokenizer.apply_chat_template(
            [{"role": "user", "content": content}],
            tokenize=False,
            chat_template=NOW.sub(lambda call: repr(TODAY.strftime(call[2])), tokenizer.get_chat_template()),
            date_string=TODAY.strftime("%d %b %Y"),
        )


def _name(tokenizer: Any) -> str:
    return str(tokenizer.name_or_path)
