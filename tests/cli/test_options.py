"""The options of the command line as a list: to add, rename or drop one is a decision, shown here."""

from jsonargparse import ArgumentParser

from data_modules import MixtureDataModule, SyntheticDataModule
from tiger.ablation.verb import ablate
from tiger.evaluation.export import export
from tiger.evaluation.generate import generate
from tiger.evaluation.runner import benchmark
from tiger.report.report import write_report
from tiger.training import AcceptanceAlignment, KDWarmStart

TASK = """
block_size decay_steps drafter gradient_checkpointing guidance_layers guidance_power guidance_weight init_from
layout lora max_new_tokens num_anchors num_routed optimizer query remember seed selector train_vision
validation_temperature verifier verifier_dtype verifier_quantization warmup_steps
"""
PROMPTS = """
batch_size cache_dir max_length max_new_tokens max_pixels num_test num_validation num_workers prompt_template
response_batch_size response_temperature responses seed verifier verifier_dtype verifier_quantization
"""
OPTIONS = {
    KDWarmStart: TASK + "ce_weight loss teacher_cache temperature",
    AcceptanceAlignment: TASK
    + "beta credit group_size kd_weight objective reward rollout_chunk temperature temperature_lr test",
    SyntheticDataModule: PROMPTS + "evaluation_mixture kinds mixture num_train question_filter",
    MixtureDataModule: PROMPTS + "folder",
    generate: """
acceptance block_size compare compile_drafter confidence_threshold device drafter dtype images max_frames
max_new_tokens num_routed num_threads prompt seed system temperature top_k top_p trace verifier
verifier_quantization video_fps videos
""",
    ablate: "base dry_run executor output seeds slurm studies study workers",
    write_report: "decoders folders output previous traces verifier",
    export: "decoder drafter dtype format metrics output verifier",
    benchmark: """
acceptance_batch_size acceptances answers_from batch_sizes block_size block_sizes compile_drafter
confidence_threshold
dataset decoders device dtype full_token_decoder max_new_tokens num_prompts num_threads num_traces output seed
set_options speed_dataset speed_prompts speed_repeats temperatures verifier verifier_quantization
""",
}


def options(target):
    parser = ArgumentParser()
    add = parser.add_class_arguments if isinstance(target, type) else parser.add_function_arguments
    add(target)
    return set(vars(parser.get_defaults()))


def test_options_are_those_that_were_decided_on():
    found = {target.__name__: sorted(options(target)) for target in OPTIONS}
    assert found == {target.__name__: sorted(names.split()) for target, names in OPTIONS.items()}
