"""The kit can fail: whatever breaks the contract in one way is caught, by the rule for it, with a sentence."""

from __future__ import annotations

from dataclasses import replace

import broken_plugins as broken
import pytest

from anynpu import plugins
from anynpu.runtime.null import NullSession
from anynpu.targets.null import Null
from anynpu.testing import conformance, models, session_rules, target_rules

TARGETS = [
    (broken.NotNamed, "members_are_there", "name is '', not a text"),
    (broken.NeedsAnArgument, "members_are_there", "cannot be made without arguments"),
    (broken.OptionsWithoutHelp, "options_are_frozen_and_explained", "level has no help text"),
    (broken.OptionsWithoutDefault, "options_are_frozen_and_explained", "level has no default"),
    (broken.OptionsNotFrozen, "options_are_frozen_and_explained", "not frozen"),
    (broken.FactsThatDoNotFit, "facts_are_frozen_and_fit", "voltage: is missing"),
    (broken.ToolsImportHeavyPackages, "tools_are_told_without_importing", "imports onnxruntime"),
    (broken.ToolsRaiseAnotherError, "tools_are_told_without_importing", "raises ToolFailed, not ToolMissing"),
    (broken.ToolsMissingWithoutHint, "tools_are_told_without_importing", "without saying how to get"),
    (broken.ToolsWithoutVersion, "tools_are_told_without_importing", "3 as the version of toycc"),
    (broken.NeedsDataAndTakesNone, "needs_data_answers", "without data compile.. succeeds"),
    (broken.NeedsDataAndFallsOver, "needs_data_answers", "raises AttributeError"),
    (broken.CheckGivesTexts, "check_gives_findings_and_writes_nothing", "not a Finding"),
    (broken.CheckWrites, "check_gives_findings_and_writes_nothing", "check.log"),
    (broken.WritesBesideOut, "compile_writes_inside_out_only", "scratch/summary.csv"),
    (broken.WritesIntoTheWorkingFolder, "compile_writes_inside_out_only", "cwd/toycc.log"),
    (broken.ChangesItsInput, "compile_writes_inside_out_only", "cache.bin"),
    (broken.AnotherFormat, "manifest_says_what_was_made", "the format is toy"),
    (broken.NoMainFile, "manifest_says_what_was_made", "no main file model.toy"),
    (broken.NotJson, "manifest_says_what_was_made", "does not go into JSON"),
    (broken.DropsTheFingerprint, "tensors_and_fingerprint_are_kept", "fingerprint"),
    (broken.DropsAnOutput, "tensors_and_fingerprint_are_kept", "outputs are"),
    (broken.TurnsAxesWithoutSaying, "tensors_and_fingerprint_are_kept", "no layout says so"),
    (broken.QuantisesWithoutSaying, "tensors_and_fingerprint_are_kept", "without saying its scale"),
    (broken.NoReceipt, "npu_has_a_receipt", "no placement"),
    (broken.ReceiptWithoutReasons, "npu_has_a_receipt", "no reason is given"),
    (broken.FileWithTheTime, "compile_is_deterministic", "different files: built.txt"),
    (broken.ManifestWithItsFolder, "compile_is_deterministic", "differ in details"),
    (broken.FallsOverBadFiles, "bad_input_raises_our_errors", "raises DecodeError"),
    (broken.CopiesBadFiles, "bad_input_raises_our_errors", "makes something of a model cut in half"),
]
SESSIONS = [
    (broken.WithoutFormats, "class_says_what_it_is", "formats is empty"),
    (broken.MissingIsNone, "missing_is_told_as_text", "None, not a text"),
    (broken.OtherSpecs, "specs_are_those_of_the_manifest", "inputs differ"),
    (broken.GivesFloat64, "outputs_are_as_specified", "holds float32, not float64"),
    (broken.DropsAResult, "outputs_are_as_specified", "run.. gives"),
    (broken.Remembers, "the_same_input_gives_the_same_output", "after another input"),
    (broken.ScalesItsInput, "inputs_are_left_alone", "changes its input arrays"),
    (broken.ReadsRawMemory, "inputs_lie_in_memory_as_they_like", "another memory order"),
    (broken.ReusesItsBuffers, "outputs_stay_as_they_are", "overwrites the outputs"),
    (broken.SharesOneDevice, "sessions_are_apart", "closing a second session"),
    (broken.TakesAnyInput, "wrong_inputs_raise_config_error", "raises DeviceError, not ConfigError"),
    (broken.ClosesOnce, "close_may_be_called_twice", "second close.. raises AttributeError"),
    (broken.FallsOverDamage, "a_damaged_file_raises_integrity_error", "raises DecodeError"),
    (broken.CrashesOnDamage, "a_damaged_file_raises_integrity_error", "ends the process"),
    (broken.RunsDamage, "a_damaged_file_raises_integrity_error", "gives other numbers"),
    (broken.WrongNumbers, "results_agree_with_the_float_model", "dB from the float model"),
]


@pytest.fixture
def chip():
    return replace(plugins.platform("null"), npu="toy NPU")


@pytest.fixture
def options_of():
    """The defaults, or something in their place for a dataclass that has none."""
    return lambda cls: cls() if cls is not broken.NoDefault else cls(1)


@pytest.mark.parametrize(("target", "rule", "sentence"), TARGETS, ids=lambda v: getattr(v, "__name__", ""))
def test_a_broken_target_is_caught(target, rule, sentence, model, chip, options_of, tmp_path, data):
    made = object.__new__(target)
    own = models.onnx_artifact(models.conv_net(), tmp_path / "own") if target is broken.ChangesItsInput else model
    case = conformance.target_case(made, own, chip, tmp_path / "kit", options_of(target.Options), data)
    with pytest.raises(AssertionError, match=sentence):
        getattr(target_rules, rule)(case)


@pytest.mark.parametrize(("session", "rule", "sentence"), SESSIONS, ids=lambda v: getattr(v, "__name__", ""))
def test_a_broken_session_is_caught(session, rule, sentence, model, tmp_path):
    case = session_rules.SessionCase(session, model, tmp_path, model)
    with pytest.raises(AssertionError, match=sentence):
        getattr(session_rules, rule)(case)


def test_every_rule_has_something_that_breaks_it():
    assert {rule for _, rule, _ in TARGETS} == {rule.__name__ for rule in target_rules.RULES}
    covered = {rule for _, rule, _ in SESSIONS}
    assert covered == {rule.__name__ for rule in session_rules.RULES}


def test_the_whole_kit_passes_what_is_sound_and_names_the_rule_that_is_broken(model, data, tmp_path):
    platform = plugins.platform("null")
    made = conformance.check_target(Null(), model, platform, tmp_path / "sound", data=data)
    made.verify()
    conformance.check_session(NullSession, made, tmp_path / "session")
    with pytest.raises(AssertionError, match=r"target null: .*fingerprint.*rule tensors_and_fingerprint_are_kept"):
        conformance.check_target(broken.DropsTheFingerprint(), model, platform, tmp_path / "broken", data=data)
    with pytest.raises(AssertionError, match=r"session ort: .*rule outputs_are_as_specified"):
        conformance.check_session(broken.GivesFloat64, model, tmp_path / "broken-session")


def test_the_models_of_the_kit_are_the_same_every_time(tmp_path):
    for net in (models.conv_net, models.dense_net):
        assert net().SerializeToString() == net().SerializeToString()
        assert net(1).SerializeToString() != net().SerializeToString()
        first = models.onnx_artifact(net(), tmp_path / f"{net.__name__}1")
        second = models.onnx_artifact(net(), tmp_path / f"{net.__name__}2")
        assert first.digest == second.digest
        assert first.manifest.fingerprint
        assert first.manifest.details["degenerate"] == []


def test_the_kit_makes_the_input_of_a_compiler_further_down_the_chain(model, data, tmp_path):
    (only,) = models.chain_inputs(plugins.platform("cpu"), model, data, tmp_path / "cpu")
    assert (only[0].name, only[1]) == ("cpu", model)
    made = models.compiled(only[0], model, data, plugins.platform("cpu"), only[0].Options(), tmp_path / "made")
    assert made.manifest.format == "onnx-ort"
    made.verify()
