"""Token classification: columns to tags to pieces and back, and the sentences of its errors."""

import gzip
import json

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from parquet_files import hub_file
from peer_models import PIECES

from bert_jax.config import BertConfig
from bert_jax.data.tokenization import load_tokenizer, train_tokenizer
from bert_jax.errors import UserError
from bert_jax.tasks.entities import Found
from bert_jax.tasks.objective import task_objective
from bert_jax.tasks.registry import task_from_json, task_to_json
from bert_jax.tasks.tagging import Tagged, Tagging, pieces_of_units, unit_tags
from bert_jax.training.objective import summed_loss

CONLL = """\
-DOCSTART- -X- O O

river NN B-NP I-PER
stone NN I-NP I-PER
, , O O

walks VBZ B-VP O
light NN B-NP I-LOC
house NN I-NP B-LOC
"""
KOREAN = "## 이름 : CHAR\tNE_TAG\n## 1\t<경찰:OG>\n경\tB-OG\n찰\tI-OG\n \tO\n또\tO\n\n은\tO\n"
ARE_TAGS = ("B-LOC", "I-LOC", "O")


@pytest.fixture(scope="module")
def vocab(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n")
    return path


@pytest.fixture(scope="module")
def tokenizer(vocab):
    return load_tokenizer(vocab)


@pytest.fixture(scope="module")
def peer_tokenizer(vocab):
    return transformers.BertTokenizer(str(vocab), do_lower_case=True)


def written(tmp_path, text, name="train.conll"):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path / name


def sentence(*units, tags=None, gap=" ", where="a:1"):
    starts = np.cumsum([0, *(len(unit) + len(gap) for unit in units)])[:-1]
    return Tagged(
        where=where, text=gap.join(units), units=units, starts=tuple(starts.tolist()), tags=tags
    )


def oracle(task, examples, features):
    """Logits of a model that is right about all pieces that have a label, and else says O."""
    outputs = []
    for [feature] in features:
        labels = np.where(feature["token_weights"] > 0, feature["token_labels"], 0)
        outputs.append([{"token_logits": 9 * np.eye(len(task.labels), dtype=np.float32)[labels]}])
    return task.predictions(examples, features, outputs)


def test_a_batch_of_units_without_pieces_has_a_loss_of_0(tokenizer):
    """Accents alone, of which an uncased vocabulary leaves nothing."""
    task = Tagging(labels=("O", "B-X"), max_length=8)
    features = task.features([sentence("\u0301", tags=("B-X",))], tokenizer)
    batch = {name: jnp.asarray(array)[None] for name, array in features[0][0].items()}
    config = BertConfig(vocab_size=len(PIECES))
    objective = task_objective(task, task.model(config), features[0][0], lambda _: 1.0)
    logits = jnp.zeros((*batch["token_labels"].shape, 2))
    metrics = objective.metrics({"token_logits": logits}, batch)
    assert metrics["loss"] == (0, 0)
    assert summed_loss(metrics, objective.weights(batch)) == 0


def test_columns_are_read_and_iob1_becomes_iob2(tmp_path):
    task = Tagging()
    for name, text in [
        ("a.conll", CONLL),
        ("b.txt", "\ufeff" + CONLL.replace("\n", "\r\n")),
        ("c.tsv", CONLL.replace(" ", "\t")),
        ("d.bio", CONLL.replace(" ", "  ").rstrip()),
        ("e.txt", CONLL.replace("\n", " \n")),
    ]:
        first, second = task.read(written(tmp_path, text, name))
        assert (first.where, second.where) == (f"{tmp_path / name}:3", f"{tmp_path / name}:7")
        assert (first.text, second.text) == ("river stone ,", "walks light house")
        assert (first.units, first.starts) == (("river", "stone", ","), (0, 6, 12))
        assert first.tags == ("B-PER", "I-PER", "O")
        assert second.tags == ("O", "B-LOC", "B-LOC")
    with gzip.open(tmp_path / "f.conll.gz", "wt") as file:
        file.write(CONLL)
    assert [e.tags for e in task.read(tmp_path / "f.conll.gz")] == [first.tags, second.tags]


def test_named_columns_of_columns(tmp_path):
    header = ("word", "pos", "chunk", "tag")
    task = Tagging(header=header, token_column="word", tag_column="pos")
    first, _ = task.read(written(tmp_path, CONLL))
    assert (first.units, first.tags) == (("river", "stone", ","), ("NN", "NN", ","))


def test_characters_are_read_with_their_spaces(tmp_path):
    first, second = Tagging(units="characters").read(written(tmp_path, KOREAN, "a.tsv"))
    assert (first.text, second.text) == ("경찰 또", "은")
    assert (first.units, first.starts) == (("경", "찰", " ", "또"), (0, 1, 2, 3))
    assert first.tags == ("B-OG", "I-OG", "O", "O")


def test_comments_are_what_the_setting_says(tmp_path):
    text = "# NN\nriver NN\n"
    (example,) = Tagging().read(written(tmp_path, text))
    assert example.units == ("#", "river")
    (example,) = Tagging(comment="# ").read(written(tmp_path, text))
    assert example.units == ("river",)
    (example,) = Tagging(comment="").read(written(tmp_path, "#" + text))
    assert example.units == ("##", "river")


def test_json_lines_are_read(tmp_path):
    rows = [{"tokens": ["river", "stone"], "tags": ["I-LOC", "E-LOC"]}]
    path = written(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "a.jsonl")
    (example,) = Tagging().read(path)
    assert (example.where, example.text) == (f"{path}:1", "river stone")
    assert example.tags == ("B-LOC", "I-LOC")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    (packed,) = Tagging().read(tmp_path / "a.jsonl.gz")
    assert (packed.units, packed.tags) == (example.units, example.tags)


def test_a_no_break_space_is_within_a_token(tmp_path):
    (example,) = Tagging().read(written(tmp_path, "10\u00a0000 O\nriver O\n"))
    assert example.units == ("10\u00a0000", "river")


def test_sentences_without_tags_are_read_to_predict(tmp_path):
    task = Tagging()
    for text, name in [
        ("river\nstone\n\nlight\n", "a.conll"),
        ('{"tokens": ["river"]}', "a.jsonl"),
        ('[{"tokens": ["river"]}]', "a.json"),
    ]:
        example = task.read(written(tmp_path, text, name), labelled=False)[0]
        assert example.units[0] == "river"
        assert example.tags is None
    known = '{"tokens": ["river"], "tags": ["B-LOC"]}'
    for text, name in [(CONLL, "a.conll"), (known, "a.jsonl")]:
        assert task.read(written(tmp_path, text, name), labelled=False)[0].tags is not None


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.conll", "river NN O\nstone O\n", "a.conll:2: 2 columns, and 3 are expected"),
        ("a.conll", "river O\nsmall stone O\n", "a.conll:2: 3 columns, and 2 are expected"),
        ("a.conll", "river O\n\nstone\n", "a.conll:3: 1 columns, and 2 are expected"),
        ("a.conll", "river\nstone\n", "a.conll:1: a column of tokens and one of tags"),
        ("a.conll", "river\t\n", "a.conll:1: a column is empty"),
        ("a.conll", "\n## nothing\n\n", "a.conll: holds no sentence"),
        ("a.conll", "", "a.conll: holds no sentence"),
        ("a.jsonl", "", "a.jsonl: holds no sentence"),
        ("a.json", '[{"tokens": ["a"]}]', "a.json[0]: no column 'tags'; there are tokens"),
        ("a.json", "a O", "a.json: not JSON"),
        ("a.jsonl", '{"tokens": ["a", "b"], "tags": ["O"]}', "a.jsonl:1: 2 tokens and 1 tags"),
        ("a.jsonl", '{"tokens": ["a"]}', "a.jsonl:1: no column 'tags'; there are tokens"),
        ("a.jsonl", '{"tokens": "a", "tags": "O"}', "'tokens' must be a list of strings"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [1]}', "'tags' must be a list of strings"),
        ("a.jsonl", '{"tokens": [], "tags": []}', "'tokens' must be a list of strings"),
        ("a.jsonl", '{"tokens": ["a", ""], "tags": ["O", "O"]}', "none of them empty"),
        ("a.jsonl", "[]", "a.jsonl:1: a JSON object is expected"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, text, message):
    with pytest.raises(UserError) as error:
        Tagging().read(written(tmp_path, text, name))
    assert str(tmp_path / name) in str(error.value)
    assert message in str(error.value)


def test_a_header_without_the_columns_is_named(tmp_path):
    with pytest.raises(UserError, match="'tokens' and 'tags', and the columns are word, pos"):
        Tagging(header=("word", "pos")).read(written(tmp_path, "river NN\n"))
    with pytest.raises(UserError, match="'tokens' and 'tags', and the columns are word, tags"):
        Tagging(header=("word", "tags")).read(written(tmp_path, "river NN\n"), labelled=False)


def test_parquet_of_the_hub_gives_the_names_of_its_tags(tmp_path):
    names = {"feature": {"names": list(ARE_TAGS), "_type": "ClassLabel"}, "_type": "Sequence"}
    columns = {"tokens": [["river", "house"], ["light"]], "ner_tags": [[0, 1], [2]]}
    path = hub_file(tmp_path / "a.parquet", columns, {"ner_tags": names})
    first, second = Tagging(tag_column="ner_tags").read(path)
    assert (first.units, first.tags) == (("river", "house"), ("B-LOC", "I-LOC"))
    assert (second.units, second.tags) == (("light",), ("O",))


@pytest.mark.parametrize("name", ["a.conll", "a.jsonl"])
def test_other_encodings_and_missing_files_are_named(tmp_path, name):
    (tmp_path / name).write_bytes("é O\n".encode("latin-1"))
    with pytest.raises(UserError, match=f"{name}:1: not UTF-8"):
        Tagging().read(tmp_path / name)
    with pytest.raises(UserError, match="No such file"):
        Tagging().read(tmp_path / ("missing-" + name))


def test_both_tags_of_every_type_are_learnt():
    task = Tagging().learn(
        [sentence("a", "b", tags=("B-PER", "O")), sentence("c", tags=("B-A-B",))]
    )
    assert task.labels == ("O", "B-A-B", "I-A-B", "B-PER", "I-PER")
    given = ("O", "I-PER", "B-PER")
    assert Tagging(labels=given).learn([sentence("a", tags=("B-PER",))]).labels == given
    fields = task.head_fields()
    assert fields["id2label"]["2"] == "I-A-B"
    assert fields["label2id"]["I-A-B"] == 2
    assert task_from_json(json.loads(json.dumps(task_to_json(task))), "task.json") == task


def test_all_sentences_with_entities_may_be_held_out():
    entity, other = sentence("a", tags=("B-PER",)), sentence("b", tags=("O",))
    task = Tagging().learn([entity, other])
    assert task.learn([other]) == task


def test_other_tags_are_scored_by_accuracy():
    examples = [sentence("a", "b", tags=("VB", "NN"))]
    assert Tagging(score="accuracy").learn(examples).labels == ("NN", "VB")
    with pytest.raises(UserError, match=r"'f1' is of entities.*NN, VB: choose accuracy"):
        Tagging().learn(examples)


def test_tags_that_look_the_same_are_told():
    with pytest.raises(UserError, match="labels 'B-PER' and 'B-PER ' differ by spaces alone"):
        Tagging().learn([sentence("a", "b", tags=("B-PER", "B-PER "))])


def test_an_unknown_tag_is_named(tokenizer):
    task = Tagging().learn([sentence("a", tags=("B-PER",))])
    unknown = sentence("b", "stone", tags=("O", "B-LOC"), where="dev.conll:7")
    with pytest.raises(UserError, match=r"dev.conll:7: tag 'B-LOC' of 'stone' .*: B-PER, I-PER, O"):
        task.check([unknown])
    with pytest.raises(UserError, match="B-LOC"):
        task.features([unknown], tokenizer)


words = st.text("abcrivestonlgh,.?é\u0301\u200b\u0007漢 -", min_size=1, max_size=6)


@given(st.lists(words, min_size=1, max_size=9), st.integers(4, 24))
def test_features_equal_transformers_split_into_words(tokenizer, peer_tokenizer, units, length):
    tags = tuple(ARE_TAGS[len(unit) % 3] for unit in units)
    task = Tagging(labels=ARE_TAGS, max_length=length)
    [[feature]] = task.features([sentence(*units, tags=tags)], tokenizer)

    theirs = peer_tokenizer(units, is_split_into_words=True, truncation=True, max_length=length)
    assert feature["input_ids"].tolist() == theirs["input_ids"]
    # run_ner.py: the first piece of a word has its label, all others -100.
    owners = theirs.word_ids()
    labels = [
        -100 if word is None or word == before else ARE_TAGS.index(tags[word])
        for before, word in zip([None, *owners], owners, strict=False)
    ]
    ours = np.where(feature["token_weights"] > 0, feature["token_labels"], -100)
    assert ours.tolist() == labels
    assert feature["token_offsets"].shape == (2, len(labels))
    assert not feature["token_offsets"][:, [0, -1]].any(), "special pieces have no characters"


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sentencepieces_words_have_the_first_pieces_of_transformers(kind, tmp_path):
    """Letters too rare to have a piece with the space before them, in first and later words."""
    units = ["Ŷcut", "Ŷ", "cut", "words", "Ŷcut", "cutŶ", "ŶŶ", "wor"]
    tokenizer = train_tokenizer(kind, iter(["cut the words", "wor"] * 9), 40, lowercase=False)
    tokenizer.save(tmp_path)
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs = peer(units, is_split_into_words=True)
    [[feature]] = Tagging(labels=ARE_TAGS).features([sentence(*units)], tokenizer)
    assert feature["input_ids"].tolist() == theirs["input_ids"]
    pieces = pieces_of_units(feature["token_offsets"].T, sentence(*units).spans)
    assert pieces.tolist() == [theirs.word_ids().index(word) for word in range(len(units))]
    assert "\u2581" in {tokenizer.pieces[feature["input_ids"][piece]] for piece in pieces}


def test_a_piece_has_the_tag_of_its_first_character(tokenizer):
    task = Tagging(units="characters", labels=ARE_TAGS)
    tags = ("B-LOC", *["I-LOC"] * 4, "O", "O", "O", "O", "O", "B-LOC")
    example = sentence(*"stone walks", tags=tags, gap="")
    [[feature]] = task.features([example], tokenizer)
    assert [tokenizer.pieces[i] for i in feature["input_ids"][1:-1]] == ["stone", "walk", "##s"]
    assert feature["token_weights"].tolist() == [0, 1, 1, 1, 0]
    assert [ARE_TAGS[label] for label in feature["token_labels"][1:-1]] == ["B-LOC", "O", "B-LOC"]


def test_the_loss_is_pytorchs_over_first_pieces(tokenizer):
    task = Tagging(labels=ARE_TAGS)
    examples = [sentence("walks", "light", "xyz", tags=ARE_TAGS)]
    [[feature]] = task.features(examples, tokenizer)
    assert feature["weight"] == 1
    logits = np.random.default_rng(0).normal(size=(len(feature["input_ids"]), 3))
    batch = {name: jnp.asarray(value)[None] for name, value in feature.items()}
    metrics = task.metrics({"token_logits": jnp.asarray(logits, jnp.float32)[None]}, batch)
    labels = np.where(feature["token_weights"] > 0, feature["token_labels"], -100)
    expected = torch.nn.functional.cross_entropy(
        torch.from_numpy(logits), torch.from_numpy(labels).long()
    )
    total, weight = metrics["loss"]
    np.testing.assert_allclose(total / weight, expected, rtol=1e-5)
    assert weight == task.loss_weight(batch) == 3


def test_predictions_tell_tags_probabilities_and_entities(tokenizer):
    task = Tagging(labels=ARE_TAGS)
    example = sentence("walks", "\u200b", "light", "house", "xyz")
    features = task.features([example], tokenizer)
    [[feature]] = features
    pieces = [tokenizer.pieces[index] for index in feature["input_ids"]]
    assert pieces[:5] == ["[CLS]", "walk", "##s", "light", "house"]
    shares = np.full((len(pieces), 3), 0.1)
    shares[:, 2] = 0.8
    shares[2] = shares[3] = [0.7, 0.2, 0.1]  # of ##s and of light
    shares[4] = [0.1, 0.6, 0.3]
    outputs = [[{"token_logits": np.log(shares)}]]

    (said,) = task.predictions([example], features, outputs)
    assert said["text"] == "walks \u200b light house xyz"
    assert said["tokens"] == list(example.units)
    assert said["predicted"] == ["O", "O", "B-LOC", "I-LOC", "O"]
    assert said["probabilities"] == pytest.approx([0.8, None, 0.7, 0.6, 0.8])
    found = {"type": "LOC", "text": "light house", "start": 8, "end": 19}
    assert said["entities"] == [found]
    assert "label" not in said
    assert "cut" not in said
    assert json.loads(json.dumps(said)) == said


@pytest.mark.parametrize(
    ("pieces", "tags", "expected"),
    [
        ([0, 0, 1], ["B-X", "O"], ["B-X", "I-X", "O"]),  # two characters of a piece
        ([0, 0], ["NN"], ["NN", "NN"]),
        ([0, -1, 1], ["B-X", "I-X"], ["B-X", "I-X", "I-X"]),  # a space in an entity
        ([0, -1, 1, 2, 2], ["B-X", "I-X", "O"], ["B-X", "I-X", "I-X", "O", "O"]),
        ([0, 1, -1, -1, 2], ["O", "B-X", "I-X"], ["O", "B-X", "I-X", "I-X", "I-X"]),
        ([0, -1, 1], ["B-X", "B-X"], ["B-X", "O", "B-X"]),  # between two
        ([0, -1, 1], ["B-X", "I-Y"], ["B-X", "O", "I-Y"]),
        ([0, -1, 1], ["O", "I-X"], ["O", "O", "I-X"]),
        ([0, -1, -1], ["B-X"], ["B-X", "O", "O"]),  # behind the cut
        ([-1, 0], ["I-X"], ["O", "I-X"]),
        ([], [], []),
    ],
)
def test_tags_of_pieces_become_those_of_units(pieces, tags, expected):
    assert unit_tags(pieces, tags) == expected


@pytest.mark.parametrize(
    ("offsets", "spans", "expected"),
    [
        ([(0, 0), (0, 2), (2, 4), (5, 6)], [(0, 4), (5, 6)], [1, 3]),  # [CLS] ab ##cd e
        ([(0, 2), (3, 4)], [(0, 1), (1, 2), (2, 3), (3, 4)], [0, 0, -1, 1]),  # characters
        ([(0, 1), (0, 1), (1, 2)], [(0, 1), (1, 2)], [0, 2]),  # letters of a syllable
        ([(0, 3)], [(0, 1), (2, 3), (4, 5)], [0, 0, -1]),
        ([], [(0, 1), (1, 2)], [-1, -1]),
    ],
)
def test_pieces_are_found_by_their_places(offsets, spans, expected):
    found = pieces_of_units(np.array(offsets).reshape(-1, 2), np.array(spans))
    assert found.tolist() == expected


def test_what_is_beyond_the_longest_sequence_is_counted_and_outside(tokenizer):
    task = Tagging(labels=ARE_TAGS, max_length=5)
    examples = [sentence("river", "walks", "light", "house", tags=("O", "B-LOC", "I-LOC", "B-LOC"))]
    features = task.features(examples, tokenizer)
    (said,) = oracle(task, examples, features)
    assert said["predicted"] == ["O", "B-LOC", "O", "O"]
    assert said["cut"] == 2
    scores = task.scores(examples, [said])
    assert scores == {"accuracy": 0.5, "f1": 0.0, "precision": 0.0, "recall": 0.0}
    assert task.found(examples, [said]) == {"LOC": Found(2, 1, 0)}


def test_units_without_pieces_are_outside_and_not_cut(tokenizer):
    task = Tagging(labels=ARE_TAGS)
    tags = ("B-LOC", "O")
    examples = [sentence("\u200b", "\u0301", tags=tags), sentence("stone", "\u200b", tags=tags)]
    none, one = oracle(task, examples, task.features(examples, tokenizer))
    assert (none["predicted"], none["label"]) == (["O", "O"], ["B-LOC", "O"])
    assert one["predicted"] == ["B-LOC", "O"]
    assert "cut" not in none | one


@pytest.mark.parametrize(
    "last", ["e\u0301", "\u0939\u0948", "\u05d1\u05bc\u05b8", ("\u05d1", "\u05bc\u05b8")]
)
def test_marks_that_a_tokenizer_strips_are_of_their_letters_entity(last):
    tokenizer = train_tokenizer("wordpiece", iter(["x \u0939 \u05d1 e"] * 9), 64, lowercase=True)
    tags = ("B-LOC", *["I-LOC"] * len(last), "O", "O")
    examples = [sentence("x", *last, ".", "\u0301", tags=tags, gap="")]
    task = Tagging(units="characters", labels=ARE_TAGS)
    (said,) = oracle(task, examples, task.features(examples, tokenizer))
    assert [found["text"] for found in said["entities"]] == ["".join(["x", *last])]
    assert said["predicted"] == list(tags)


def test_tags_that_are_not_of_entities_have_none(tokenizer):
    task = Tagging(labels=("NN", "VB"))
    examples = [sentence("river", "walks", tags=("NN", "VB"))]
    (said,) = oracle(task, examples, task.features(examples, tokenizer))
    assert said["predicted"] == said["label"] == ["NN", "VB"]
    assert "entities" not in said
    assert task.scores(examples, [said]) == {"accuracy": 1}


def test_right_tags_score_all(tokenizer):
    task = Tagging(labels=ARE_TAGS)
    examples = [sentence("river", "walks", "stone", tags=("O", "B-LOC", "I-LOC"))]
    predictions = oracle(task, examples, task.features(examples, tokenizer))
    assert set(task.scores(examples, predictions).values()) == {1.0}


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("The EU's (old) e-mail, in U.S. $5.", "The EU's ( old ) e-mail , in U.S . $ 5 ."),
        ("  हिन्दी  cafe\u0301? ...", "हिन्दी cafe\u0301 ? . . ."),
        ("我在北京，ABC公司𠮷。", "我 在 北 京 ， ABC 公 司 𠮷 。"),
        ("", ""),
    ],
)
def test_text_is_split_into_words_with_punctuation_apart(text, units):
    example = Tagging().example("text:1", [text])
    assert example.units == tuple(units.split())
    assert [text[start:end] for start, end in example.spans] == list(example.units)
    assert Tagging(units="characters").example("text:1", [text]).units == tuple(text)


def test_real_korean_entities_survive_pieces_of_characters(test_data, tmp_path):
    task = Tagging(units="characters", max_length=160)
    examples = task.read(test_data / "korean/klue-ner.tsv")
    assert len(examples) == 5000
    task = task.learn(examples)
    assert len(task.labels) == 13  # six types
    characters = sorted({unit for example in examples for unit in example.units} - {" "})
    pieces = [*PIECES[:5], *characters, *("##" + character for character in characters)]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    single = load_tokenizer(tmp_path / "vocab.txt", lowercase=False)
    scores = task.scores(examples, oracle(task, examples, task.features(examples, single)))
    # Two entities begin with a space, which no piece stands for.
    assert scores["f1"] > 0.9995

    # A piece of a name and the particle after it has one tag: this is what is left at best.
    some = examples[:1500]
    unigram = train_tokenizer("unigram", (example.text for example in some), 2500, False)
    scores = task.scores(some, oracle(task, some, task.features(some, unigram)))
    assert 0.9 < scores["f1"] < 1
