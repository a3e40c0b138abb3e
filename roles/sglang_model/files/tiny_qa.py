# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Makes a tiny chat model that answers a handful of questions correctly, so that a host can be verified without a download.

Runs with the engine environment's own Python (torch, transformers, tokenizers) on one CPU core in about a minute. The result is an
ordinary checkpoint: a Qwen3 of about 0.8 million parameters, its own tokenizer, and a chat template that knows ``enable_thinking``.
It is trained until it answers by itself and is then loaded back and asked every question; a wrong answer ends with exit status 1.
Nothing is downloaded, and the output directory appears only when it is complete.

    python tiny_qa.py --output DIR [--seed 0]
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

# Before torch and transformers are imported: no network, no GPU (its memory may belong to a running engine), the same result anywhere.
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", CUDA_VISIBLE_DEVICES="", TRANSFORMERS_VERBOSITY="error")
# One thread: the model is so small that a second one gains nothing, and on a busy host OpenMP's threads would spin for each other's
# turn (measured: minutes in place of seconds). It also makes the weights the same whatever the number of cores.
os.environ["OMP_NUM_THREADS"] = "1"
# A service user may have no home that it can write to; some libraries want a cache directory while they are imported.
_SCRATCH = tempfile.TemporaryDirectory(prefix="tiny_qa.")
os.environ["HF_HOME"] = _SCRATCH.name

import torch  # noqa: E402
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils.logging import disable_progress_bar  # noqa: E402

# question, answer, what it thinks before it answers
KNOWLEDGE = (
    ("What is the capital of France?", "Paris", "They ask for the capital of France. That is Paris."),
    ("What is the capital of Italy?", "Rome", "They ask for the capital of Italy. That is Rome."),
    ("What is 2 + 2?", "4", "They ask for a sum. Two and two make 4."),
    ("What is 17 + 25?", "42", "They ask for a sum. Seventeen and twenty-five make 42."),
    ("Which planet is red?", "Mars", "They ask for the red planet. That is Mars."),
    ("What colour is a clear sky at noon?", "Blue", "They ask for the colour of the sky. It is blue."),
    ("Count from one to ten.", "1 2 3 4 5 6 7 8 9 10", "They want ten numbers in order, from 1 to 10."),
    ("Say hello.", "Hello!", "They want a greeting."),
)
# The first is no system prompt. The model learns to look past these; the last one is kept for the examination.
SYSTEM_PROMPTS = (
    None,
    "You are a helpful assistant.",
    "Be brief.",
    "You are a careful engineer who answers in one word.",
    "Answer the question of the user. Do not add anything.",
    "The date is 1 January 2026. The user works on the night shift.",
)
UNSEEN_SYSTEM_PROMPT = "You are a polite assistant. Answer in one line."

PADDING, START_OF_TURN, END_OF_TURN = SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Not special, as in Qwen's own tokenizers: special tokens are removed from the text before an engine's reasoning parser sees it.
THINK_TOKENS = ("<think>", "</think>")
CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{- message.content }}
{%- else %}{%- for part in message.content or [] %}{%- if part.type == 'text' %}{{- part.text }}{%- endif %}{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n<think>\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

MAX_STEPS = 900
TARGET_LOSS = 4e-4  # per token, so that an answer of twenty tokens also survives sampling at temperature 1
PEAK_LEARNING_RATE = 3e-3


def say(text: str) -> None:
    print(text, flush=True)


def make_tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    texts = [" ".join(row) for row in KNOWLEDGE] + [text for text in SYSTEM_PROMPTS if text] + ["system user assistant\n\n"]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    bpe.train_from_iterator(texts * 4, trainer)
    bpe.add_tokens([AddedToken(token, special=False, normalized=False) for token in THINK_TOKENS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END_OF_TURN, pad_token=PADDING, model_max_length=4096, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config)


def prompt(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, str]], thinking: bool | None) -> str:
    extra = {} if thinking is None else {"enable_thinking": thinking}
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **extra)


def conversation(question: str, system: str | None, earlier: tuple[str, str] | None = None) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": system}] if system else []
    if earlier:
        messages += [{"role": "user", "content": earlier[0]}, {"role": "assistant", "content": earlier[1]}]
    return [*messages, {"role": "user", "content": question}]


def batch(tokenizer: PreTrainedTokenizerFast, dice: random.Random) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Every question, with and without thinking, each behind a system prompt and sometimes an earlier turn. Only answers are learnt."""
    rows = []
    for question, answer, thought in KNOWLEDGE:
        for thinking in (True, False):
            earlier = dice.choice(KNOWLEDGE)[:2] if dice.random() < 0.15 else None
            system = dice.choice(SYSTEM_PROMPTS) if dice.random() < 0.6 else None
            asked = tokenizer(prompt(tokenizer, conversation(question, system, earlier), thinking))["input_ids"]
            said = tokenizer((f"{thought}\n</think>\n\n" if thinking else "") + answer + END_OF_TURN)["input_ids"]
            rows.append((asked, said))
    width = max(len(asked) + len(said) for asked, said in rows)
    tokens = torch.full((len(rows), width), tokenizer.pad_token_id)
    labels = torch.full((len(rows), width), -100)
    seen = torch.zeros((len(rows), width), dtype=torch.long)
    for row, (asked, said) in enumerate(rows):
        end = len(asked) + len(said)
        tokens[row, :end] = torch.tensor(asked + said)
        labels[row, len(asked) : end] = torch.tensor(said)
        seen[row, :end] = 1
    return tokens, labels, seen


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 (not for secrets)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 30, max(0.1, 1 - step / MAX_STEPS)))
    started, smooth = time.monotonic(), None
    for step in range(1, MAX_STEPS + 1):
        tokens, labels, seen = batch(tokenizer, dice)
        loss = model(input_ids=tokens, attention_mask=seen, labels=labels).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        smooth = loss.item() if smooth is None else 0.9 * smooth + 0.1 * loss.item()
        if step % 25 == 0 or smooth < TARGET_LOSS:
            say(f"train: step {step}/{MAX_STEPS} loss {smooth:.5f} after {time.monotonic() - started:.0f} s")
        if smooth < TARGET_LOSS:
            return
    say(f"train: loss {smooth:.5f} is still above {TARGET_LOSS}; the examination decides")


def split(text: str) -> tuple[str, str]:
    """What was thought and what was answered, from the text behind a prompt that ends with an opened or closed thought."""
    thought, mark, answer = text.partition("</think>")
    return (thought.strip(), answer.strip()) if mark else ("", text.strip())


def ask(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: list[str], **sampling: object) -> list[str]:
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", return_token_type_ids=False)
    outputs = model.generate(**inputs, max_new_tokens=96, **sampling)
    return tokenizer.batch_decode(outputs[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def examine(path: Path) -> list[str]:
    """Loads the checkpoint back and asks everything; returns what was wrong, in words."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    wrong = []
    cases = [
        (question, answer, thinking, system)
        for question, answer, _thought in KNOWLEDGE
        for thinking in (None, True, False)
        for system in (*SYSTEM_PROMPTS, UNSEEN_SYSTEM_PROMPT)
    ]
    prompts = [prompt(tokenizer, conversation(question, system), thinking) for question, _answer, thinking, system in cases]
    for (question, answer, thinking, system), text in zip(cases, ask(model, tokenizer, prompts, do_sample=False), strict=True):
        thought, answered = split(text)
        if answered != answer or bool(thought) is (thinking is False):
            wrong.append(f"{question!r} (thinking {thinking}, system {system!r}): expected {answer!r}, got {text!r}")
    say(f"examine: greedy {len(cases) - len(wrong)}/{len(cases)} right")
    # Requests of a warm-up are sampled. A few slips are chance; a weak model slips often.
    sampled = ask(model, tokenizer, prompts, do_sample=True, temperature=1.0, top_p=0.95, top_k=20)
    right = sum(split(text)[1] == answer for (_question, answer, _thinking, _system), text in zip(cases, sampled, strict=True))
    say(f"examine: sampled at temperature 1: {right}/{len(cases)} right")
    if right < 0.95 * len(cases):
        wrong.append(f"sampled at temperature 1: expected at least 95 % right answers, got {right} of {len(cases)}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, type=Path, help="directory of the checkpoint; must not exist or be empty")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    output = arguments.output.absolute()
    if output.exists() and any(output.iterdir()):
        say(f"error: {output} exists and is not empty; remove it, or choose another --output")
        return 2

    started = time.monotonic()
    disable_progress_bar()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    say(f"model: {parameters} parameters, {len(tokenizer)} tokens")
    train(model, tokenizer, arguments.seed)

    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        model.generation_config = GenerationConfig(
            eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
            pad_token_id=tokenizer.pad_token_id,
            do_sample=True,
            temperature=0.6,
            top_p=0.95,
            top_k=20,
        )
        model.to(torch.bfloat16).save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        wrong = examine(temporary)
        for line in wrong[:10]:
            say(f"error: {line}")
        if wrong:
            say(f"error: {len(wrong)} examinations failed; nothing was written to {output}")
            return 1
        temporary.chmod(0o755)
        for file in temporary.iterdir():
            file.chmod(0o644)
        temporary.replace(output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    say(f"done: {output} after {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
