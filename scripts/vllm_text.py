"""Time vLLM's steps with and without decoding what it writes into text: python scripts/vllm_text.py

48 rows of 200 tokens on random weights of the three-tools policy's shape, four pairs in one process.
"""

import os
import tempfile
import time
from pathlib import Path

ROWS = 48
TOKENS = 200


def main() -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from side_by_side import random_policy
    from vllm import LLM, SamplingParams

    prompts = [{"prompt_token_ids": [5 + row] * 30} for row in range(ROWS)]
    with tempfile.TemporaryDirectory() as folder:
        policy = random_policy(Path(folder) / "policy", "tiny")
        llm = LLM(str(policy), max_model_len=1024, gpu_memory_utilization=0.2, dtype="float32")

        def milliseconds(detokenize: bool) -> float:
            parameters = SamplingParams(
                max_tokens=TOKENS, ignore_eos=True, logprobs=0, seed=1, detokenize=detokenize
            )
            start = time.perf_counter()
            llm.generate(prompts, parameters, use_tqdm=False)
            return (time.perf_counter() - start) / TOKENS * 1000

        milliseconds(True)
        milliseconds(False)
        for _ in range(4):
            print(
                f"a step with text {milliseconds(True):.2f} ms, without {milliseconds(False):.2f}"
            )


if __name__ == "__main__":
    main()
