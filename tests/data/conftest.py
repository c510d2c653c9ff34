"""Tokenizers that split the same words into bytes, pieces and words."""

import pytest
from helpers.treebanks import SENTENCES


@pytest.fixture(scope="session")
def word_tokenizer():
    """Every word is a token; a sentence starts with <s>."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    names = ["<unk>", "<s>", *dict.fromkeys(word for words in SENTENCES for word in words)]
    level = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    level.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    level.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=level, unk_token="<unk>", bos_token="<s>")


@pytest.fixture
def three(bert_tokenizer, gpt_tokenizer, word_tokenizer):
    return {"bytes": gpt_tokenizer, "pieces": bert_tokenizer, "words": word_tokenizer}
