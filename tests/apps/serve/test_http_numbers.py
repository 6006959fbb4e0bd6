"""Numbers of raw tensors: what does not fit the type, or is no token of the model, is refused and never computed."""

from __future__ import annotations

import numpy as np
import orjson
import pytest
from process import served
from text_model import LENGTH, WORDS, text_artifact

from anynpu.apps.serve.tensors import from_lists
from anynpu.apps.web.message import Refusal


@pytest.mark.parametrize(
    "text", ["-9223372036854775809", "9223372036854775808", "18446744073709551616", "1e19", "1e300"]
)
def test_an_integer_beyond_64_bits_is_refused_however_json_is_read(text):
    with pytest.raises(Refusal) as refused:
        from_lists("x", orjson.loads(f"[{text}, 0]"), "int64")
    assert refused.value.status == 422


@pytest.mark.parametrize("text", ["-9223372036854775808", "9223372036854775807", "9007199254740993", "5.0", "-3"])
def test_every_integer_of_64_bits_is_kept_exactly(text):
    array = from_lists("x", orjson.loads(f"[{text}, 7.0]"), "int64")
    assert array.dtype == np.int64 and array.tolist() == [int(float(text)) if "." in text else int(text), 7]


@pytest.mark.parametrize("data", [[True, 0], [[0, 1], [False, 1]], [0.5, True], ["1", 0], [None, 0], [0, [1]], [{}, 1]])
@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32"])
def test_what_is_not_a_number_is_refused_among_numbers_too(data, dtype):
    with pytest.raises(Refusal):
        from_lists("x", data, dtype)


def test_truth_values_are_truth_values_only():
    assert from_lists("x", [[True], [False]], "bool").tolist() == [[True], [False]]
    with pytest.raises(Refusal):
        from_lists("x", [True, 1], "bool")


def test_what_is_no_token_of_the_model_is_refused_and_the_document_says_which_are(tmp_path):
    text_artifact(tmp_path / "text")
    with served(tmp_path, "text", "--access-log", "none") as running:
        ask = running.client
        size = ask("GET", "/info").json()["models"]["text"]["vocabulary"]["input_ids"]
        assert size >= len(WORDS)
        document = ask("GET", "/openapi.json").json()
        forms = document["paths"]["/infer"]["post"]["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
        assert forms[0]["properties"]["inputs"]["properties"]["input_ids"]["items"]["maximum"] == size - 1
        for token, status in ((size - 1, 200), (size, 422), (-1, 422), (2**40, 422)):
            inputs = {"input_ids": [token] * LENGTH, "attention_mask": [1] * LENGTH}
            answer = ask("POST", "/infer", orjson.dumps({"inputs": inputs}), content_type="application/json")
            assert answer.status == status, answer.body
        assert ask("GET", "/health").json()["models"]["text"]["restarts"] == 0
