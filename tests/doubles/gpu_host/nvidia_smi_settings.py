#!/usr/bin/env python3
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""nvidia-smi of a recorded host whose settings can be changed. For tests only; Python 3.9, standard library.

FIRSTLIGHT_GPU_HOST names a copy of a recorded host, whose nvidia-smi.json is changed by `[-i GPU] -pm|-e|-mig 0|1`, `-pl WATTS` and
`-lgc LOW,HIGH`; everything else is answered from it as nvidia_smi.py does. As the real one: ECC and MIG change what is pending, a GPU
that has no such setting is a warning with exit status 0, and a power limit out of the range is an error. What was called is in the
copy's file `calls`. A file `deaf` there lets it take everything and keep nothing (case A23: RTX 5090 below its lowest limit).
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import sys
import typing as t

import nvidia_smi

# Option -> column of --query-gpu, elements of -q -x.
PLACES = {
    "-e": ("ecc.mode.pending", ("pending_ecc",)),
    "-mig": ("mig.mode.pending", ("pending_mig",)),
    "-pm": ("persistence_mode", ("persistence_mode",)),
    "-pl": ("power.limit", ("current_power_limit", "requested_power_limit")),
}


class Host:
    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.answers = nvidia_smi.load(directory)
        self.recording = nvidia_smi.Recording(self.answers)

    def change(self, gpu: t.Mapping[str, str], option: str, value: str) -> None:
        """Write a value into the recorded table and into the XML."""
        column, elements = PLACES[option]
        table = self.recording.tables["--query-gpu"]
        place = table.columns.index(column)
        for number, answer in enumerate(self.answers):
            text = answer.stdout
            if answer is table.answer:
                lines = [line.split(", ") for line in text.splitlines()]
                for line in lines:
                    if gpu["uuid"] in line:
                        line[place] = value
                text = "".join(f"{', '.join(line)}\n" for line in lines)
            if answer.argv == ["-q", "-x"]:
                blocks = re.split(r"(?=\t<gpu id=)", text)
                (index,) = (index for index, block in enumerate(blocks) if f"<uuid>{gpu['uuid']}</uuid>" in block)
                for element in elements:
                    blocks[index] = re.sub(rf"<{element}>[^<]*<", f"<{element}>{value}<", blocks[index], count=1)
                text = "".join(blocks)
            self.answers[number] = answer._replace(stdout=text)
        (self.directory / "nvidia-smi.json").write_text(json.dumps([answer._asdict() for answer in self.answers]), encoding="utf-8")
        self.recording = nvidia_smi.Recording(self.answers)

    def set(self, gpus: t.Sequence[t.Mapping[str, str]], option: str, value: str) -> int:
        for gpu in gpus:
            bus = gpu["pci.bus_id"]
            if option == "-lgc":
                print(f'GPU clocks set to "(gpuClkMin {value.partition(",")[0]}, gpuClkMax {value.partition(",")[2]})" for GPU {bus}')
                continue
            before = gpu[PLACES[option][0]]
            if "N/A" in before or "Not Supported" in before:
                print(f"Changing this is not supported for GPU {bus}.\nTreating as warning and moving on.")
                continue
            if (self.directory / "deaf").exists():
                continue
            if option == "-pl":
                low, high = (float(gpu[name].split()[0]) for name in ("power.min_limit", "power.max_limit"))
                if not low <= float(value) <= high:
                    print(f"Provided power limit {float(value):.2f} W is not a valid power limit which should be between {low:.2f} W and")
                    print(f"{high:.2f} W for GPU {bus}\nTerminating early due to previous errors.")
                    return 2
            words = f"{float(value):.2f} W" if option == "-pl" else {"1": "Enabled", "0": "Disabled"}[value]
            self.change(gpu, option, words)
        print("All done.")
        return 0


def main() -> int:
    directory = pathlib.Path(os.environ["FIRSTLIGHT_GPU_HOST"])
    argv = sys.argv[1:]
    with (directory / "calls").open("a", encoding="utf-8") as stream:
        stream.write(f"{' '.join(argv)}\n")
    wanted, rest = nvidia_smi.take_option(argv, "-i", "--id")
    if len(rest) != 2 or rest[0] not in (*PLACES, "-lgc"):
        return nvidia_smi.main()
    host = Host(directory)
    rows = host.recording.tables["--query-gpu"].rows if wanted is None else host.recording.gpus(wanted)
    if not rows:
        print("No devices were found")
        return 6
    return host.set(rows, *rest)


if __name__ == "__main__":
    sys.exit(main())
