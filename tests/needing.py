"""Test modules that cannot be imported where a package is missing; paths are of this folder."""

TRL_FOLDER = "engines/trl"
WITH_TRL = (
    "docs/test_tool_pages.py",
    "engines/contract/test_contract.py",
    "engines/test_codec_tools.py",
    "examples/test_own_trainer.py",
    "examples/test_wrong_ways.py",
    "experiments/test_evaluating.py",
    "exporting/test_card.py",
    "exporting/test_chat_template.py",
    "exporting/test_complete.py",
    "exporting/test_export.py",
    "exporting/test_push.py",
    "exporting/test_serving_page.py",
    "exporting/test_whole_run.py",
    "test_doctor.py",
    "test_gpu_configs.py",
    "test_hub.py",
)
WITH_NOTEBOOK = ("docs/test_notebook.py",)
