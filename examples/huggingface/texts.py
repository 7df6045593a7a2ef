"""Short texts about food and rooms, made up on the spot, each with whether its author was content."""

import random

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

THINGS = ["soup", "bread", "room", "bed", "coffee", "waiter", "garden", "price"]
GOOD = ["good", "great", "lovely", "fine", "warm", "charming"]
BAD = ["bad", "awful", "cold", "dull", "stale", "rude"]
OPENINGS = ["we thought", "i found", "my sister says", "honestly"]
WORDS = sorted({*"the was not [PAD] [UNK]".split(), *" ".join(OPENINGS).split(), *THINGS, *GOOD, *BAD})


def make(count: int, seed: int) -> tuple[list[str], list[int]]:
    """So many texts with their labels: neither a word alone nor "not" alone tells which."""
    chance = random.Random(seed)
    texts, labels = [], []
    for _ in range(count):
        is_good, is_negated = chance.random() < 0.5, chance.random() < 0.5
        word = chance.choice(GOOD if is_good else BAD)
        negation = "not " if is_negated else ""
        texts.append(f"{chance.choice(OPENINGS)} the {chance.choice(THINGS)} was {negation}{word}")
        labels.append(int(is_good != is_negated))
    return texts, labels


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per word of the vocabulary above."""
    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", model_max_length=32)
