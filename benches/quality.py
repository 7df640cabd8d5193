#!/usr/bin/env python3
"""What each KV format costs: `ebb eval --kv` over a list of specifications, as CSV.

usage: quality.py EBB MODEL TEXT OUT.csv [--ctx 4096] [--windows 4] [--device cpu] [--threads N]
           [--as-is] [SPEC ...]

Specifications are scored with the first and the last sealed block at 16 bit, unless they say
themselves what is guarded (--as-is); one without "=" is then a preset (NAME or NAME:FILE). A row is
appended as soon as it is known, so that an interrupted table keeps what it has; rows that are there
are not run again.
"""

import argparse
import csv
import json
import pathlib
import subprocess
import sys

SPECS = """
k=int4,v=int2 k=kitty25,v=int2 k=int2,v=int2 k=int4,v=int4 v=int2
v=int2,rotate=v
k=int3,v=int3 k=kitty12,v=int2 k=int2,v=int4 k=polar44grid k=int8,v=int8
k=kitty25,v=int2,rotate=v
k=int3,v=int2 k=int2 k=kitty25 k=int3 k=polar44
k=polar42 k=int4,v=int2,layer18.k=int8 k=kitty25,v=int2,layer18.k=int8 k=int4t,v=int4 k=kvmix11
k=kitty25,v=int4,rotate=v k=int4,v=int2,rotate=v
k=int2c k=kitty12c k=kitty25c v=int2c k=kitty25c,v=int2c k=int2c,v=int2c v=int2c,rotate=v
k=kitty25c,v=int2c,rotate=v k=int4 k=int4,v=int4,rotate=v k=int3,v=int3,rotate=v
k=int3,v=int2,rotate=v k=int2c,v=int2c,rotate=v k=int2,v=int2,rotate=v k=int4,rotate=k
k=int3,rotate=k k=kitty25,rotate=k k=kitty25c,rotate=k k=kitty12c,rotate=k k=int2c,rotate=k
k=int2,rotate=k k=int4,v=int4,rotate=kv k=int3,v=int3,rotate=kv k=int3,v=int2,rotate=kv
k=int3,v=int2c,rotate=kv k=kitty25c,v=int2c,rotate=kv k=int2c,v=int2c,rotate=kv
k=int2,v=int2,rotate=kv
"""
FIELDS = """kv mean_bits_sealed mean_bits kl_second_half ppl_second_half top1_second_half
kl ppl top1 ppl_16bit_second_half ppl_16bit ctx windows tokens""".split()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ebb")
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--ctx", default="4096")
    parser.add_argument("--windows", default="4")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", default=None, help="one is best on a machine that others use")
    parser.add_argument("--as-is", action="store_true")
    parser.add_argument("specs", nargs="*")
    args = parser.parse_intermixed_args()
    done = set()
    if args.out.exists():
        done = {row["kv"] for row in csv.DictReader(args.out.open())}
    else:
        csv.writer(args.out.open("w")).writerow(FIELDS)
    guards = "" if args.as_is else ",protect=f16"
    specs = [spec + guards for spec in args.specs or SPECS.split()]
    specs = [spec for spec in specs if spec not in done]
    if not specs:
        return
    command = [args.ebb, "eval", "--model", args.model, "--text", args.text, "--json"]
    command += ["--ctx", args.ctx, "--windows", args.windows, "--device", args.device]
    command += ["--kv-memory", "2GiB"] if args.device == "cpu" else []
    for spec in specs:
        command += ["--kv" if "=" in spec or not args.as_is else "--kv-preset", spec]
    command += ["--threads", args.threads] if args.threads else []
    print(*command, flush=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        for row in map(json.loads, run.stdout):
            with args.out.open("a") as file:
                writer = csv.DictWriter(file, FIELDS)
                writer.writerow(
                    {f: round(v, 6) if isinstance(v := row[f], float) else v for f in FIELDS}
                )
    sys.exit(run.returncode)


main()
