"""Vocabularies that others have made, with rules of their own: what is read and what is written."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from bert_jax.data.tokenization import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.tasks.sequences import sequence

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [
    *SPECIAL,
    "Rain",
    "rain",
    "ráin",
    "falls",
    "in",
    "May",
    "may",
    "1",
    "2",
    "12",
    "##2",
    "-",
    "12-",
]
TEXTS = ["Rain falls in May 12", "may-12", "ráin", "\x00rain falls", "RAIN", "12-", "RÁIN"]


def write_json(directory: Path, change: Callable[[Tokenizer], Any], **config: Any) -> Path:
    """A directory with a tokenizer.json of BERT's rules after `change`, and its config."""
    vocab = {piece: index for index, piece in enumerate(PIECES)}
    backend = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens(SPECIAL)
    change(backend)
    directory.mkdir()
    backend.save(str(directory / "tokenizer.json"))
    names = {f"{piece[1:-1].lower()}_token": piece for piece in SPECIAL}
    (directory / "tokenizer_config.json").write_text(json.dumps(names | config))
    return directory


def ids_of_transformers(directory: Path) -> list[list[int]]:
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    return [theirs(text, add_special_tokens=False)["input_ids"] for text in TEXTS]


def whole_words(backend: Tokenizer) -> None:
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()


def uncleaned(backend: Tokenizer) -> None:
    backend.normalizer = normalizers.BertNormalizer(clean_text=False, lowercase=False)


def short_words(backend: Tokenizer) -> None:
    vocab = backend.get_vocab()
    backend.model = models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=3)


@pytest.mark.parametrize("change", [whole_words, uncleaned, short_words])
def test_rules_that_are_not_berts_are_those_of_transformers_too(change, tmp_path):
    source = write_json(tmp_path / "theirs", change, tokenizer_class="PreTrainedTokenizerFast")
    ours = load_tokenizer(source)
    ours.save(tmp_path / "ours")
    ids = [list(array) for array in ours.encode_batch(TEXTS)]
    assert ids == ids_of_transformers(source)
    assert ids == ids_of_transformers(tmp_path / "ours")


@pytest.mark.parametrize(
    "name", [None, "BertTokenizer", "ElectraTokenizerFast", "DistilBertTokenizer"]
)
@pytest.mark.parametrize(
    "rules", [{"do_lower_case": True}, {"do_lower_case": True, "strip_accents": False}]
)
def test_rules_of_a_config_go_before_those_of_a_tokenizer_json(name, rules, tmp_path):
    """BertTokenizer goes by them, by whatever name; people correct that file alone."""
    names = {"tokenizer_class": name} if name else {}
    source = write_json(tmp_path / "theirs", lambda backend: None, **names, **rules)
    (source / "config.json").write_text('{"model_type": "bert"}')
    ours = load_tokenizer(source)
    ids = [list(array) for array in ours.encode_batch(TEXTS)]
    assert ids == ids_of_transformers(source)
    assert ours.lowercases


def doubled(backend: Tokenizer) -> None:
    """As XLM-RoBERTa's tokenizer, which many a BERT of several languages has."""
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )


def test_pairs_are_written_as_they_are_trained(tmp_path):
    """Whatever a tokenizer.json says of them: whole_words leaves under a class that goes by it."""

    def change(backend: Tokenizer) -> None:
        whole_words(backend)
        doubled(backend)

    source = write_json(tmp_path / "theirs", change, tokenizer_class="PreTrainedTokenizerFast")
    ours = load_tokenizer(source)
    assert ours.other_pair == "[CLS]:0 [SEP]:0 [SEP]:0 [SEP]:0"
    ours.save(tmp_path / "ours")
    assert load_tokenizer(tmp_path / "ours").other_pair == ""
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")("rain falls", "in May")
    trained = sequence(ours.encode_batch(["rain falls", "in May"]), ours)
    assert {name: array.tolist() for name, array in trained.items()} == dict(theirs)


ALBERT = {f"{piece[1:-1].lower()}_token": piece for piece in SPECIAL}
XLM = {
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "mask_token": "<mask>",
}


def sentencepiece_model(**settings: Any) -> bytes:
    model = io.BytesIO()
    text = [f"Rain {number} falls in May ``{number}''" for number in range(40)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=model,
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
        **settings,
    )
    return model.getvalue()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            XLM | {"tokenizer_class": "XLMRobertaTokenizer"},
            "tokenizer_class is XLMRobertaTokenizer",
        ),
        (ALBERT | {"tokenizer_class": "AlbertTokenizerFast"}, "class is AlbertTokenizerFast"),
        (ALBERT | {"do_lower_case": True, "tokenizer_class": "AlbertTokenizer"}, "case is true"),
    ],
)
def test_a_model_that_is_not_all_of_a_tokenizer_is_refused(asked, said, tmp_path):
    """What the line advises gives the ids of transformers."""
    if asked["pad_token"] == "<pad>":  # which neither has nor needs a place in such a model
        (tmp_path / "sentencepiece.bpe.model").write_bytes(sentencepiece_model())
    else:
        specials = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
        specials |= {"pad_piece": "[PAD]", "unk_piece": "[UNK]", "control_symbols": SPECIAL[2:]}
        (tmp_path / "spiece.model").write_bytes(sentencepiece_model(**specials))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(asked))
    with pytest.raises(UserError, match=rf"tokenizer_config.json: .*{said}, which the \.model"):
        load_tokenizer(tmp_path)
    ids = ids_of_transformers(tmp_path)
    transformers.AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
    assert [list(array) for array in load_tokenizer(tmp_path).encode_batch(TEXTS)] == ids


@pytest.mark.parametrize("key", ["additional_special_tokens", "extra_special_tokens"])
def test_additional_special_pieces_are_found_in_text(key, tmp_path):
    """As those around the entities of a relation; the five that every model has are not."""
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs.add_special_tokens({"additional_special_tokens": ["[E1]", "[/E1]"]})
    theirs.save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config[key] = config.pop("extra_special_tokens")
    path.write_text(json.dumps(config))
    ours = load_tokenizer(tmp_path / "theirs")
    ours.save(tmp_path / "ours")
    again = load_tokenizer(tmp_path / "ours")
    assert again.digest == ours.digest
    for tokenizer in (ours, again):
        [ids] = tokenizer.encode_batch(["[E1]rain[/E1] falls"])
        assert ids.tolist() == theirs("[E1]rain[/E1] falls", add_special_tokens=False)["input_ids"]
        assert tokenizer.mask_id not in tokenizer.encode_batch(["[MASK]"])[0]
        assert {len(PIECES), len(PIECES) + 1} < tokenizer.special_ids
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert saved.extra_special_tokens == ["[E1]", "[/E1]"]


def test_special_pieces_beside_the_vocabulary_are_found_in_text(tmp_path):
    """In tokenizer.json alone, as `add_tokens(..., special_tokens=True)` leaves them."""
    marks = ["[E1]", "[/E1]"]
    path = write_json(tmp_path / "theirs", lambda backend: backend.add_special_tokens(marks))
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    text = "[E1]rain[/E1] falls"
    [ids] = load_tokenizer(path).encode_batch([text])
    assert ids.tolist() == theirs(text, add_special_tokens=False)["input_ids"]
    assert {len(PIECES), len(PIECES) + 1} < set(ids.tolist())


def test_special_pieces_may_be_listed_in_a_file_of_their_own(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*PIECES, "[unused1]"]) + "\n")
    listed = {"additional_special_tokens": ["[unused1]"]}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(listed))
    [ids] = load_tokenizer(tmp_path).encode_batch(["[unused1] rain"])
    assert ids.tolist() == [len(PIECES), PIECES.index("rain")]


def test_additional_special_pieces_of_a_vocab_txt_are_found_in_text(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*PIECES, "[E1]"]) + "\n")
    listed = {"tokenizer_class": "BertTokenizer", "additional_special_tokens": ["[E1]", {}, "[E9]"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(listed))
    ours = load_tokenizer(tmp_path)
    [(ids, offsets)] = ours.encode_with_offsets(["rain [E1]falls"])
    assert ids.tolist() == [PIECES.index("rain"), len(PIECES), PIECES.index("falls")]
    assert offsets.tolist() == [[0, 4], [5, 9], [9, 14]]
    assert ours.vocab_size == len(PIECES) + 1
    for other in (5, "[E1]", None):
        listed["additional_special_tokens"] = other
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(listed))
        assert len(PIECES) not in load_tokenizer(tmp_path).encode_batch(["[E1]"])[0]
