"""Test modules that cannot be imported where a package is missing; paths are of this folder."""

TRL_FOLDER = "engines/trl"
WITH_TRL = (
    "docs/test_reference.py",
    "docs/test_bring_your_own.py",
    "engines/contract/test_contract.py",
    "policy/test_codec_tools.py",
    "environments/test_prompt_in_data.py",
    "examples/test_own_trainer.py",
    "examples/test_three_tools.py",
    "examples/test_wrong_ways.py",
    "export/test_model_card.py",
    "policy/test_chat_template.py",
    "export/test_complete.py",
    "export/test_export.py",
    "export/test_serving_page.py",
    "export/test_whole_run.py",
    "cli/test_doctor.py",
    "config/test_gpu_run_files.py",
    "policy/test_policy_files.py",
    "policy/test_precision.py",
    "policy/test_template_checks.py",
    "rewards/test_like_trl.py",
)
WITH_NOTEBOOK = ("docs/test_notebook.py",)
