"""What the container image adds: who the program is. Left out elsewhere; deploy/image.sh --check
runs it with the others.
"""

import os
import pathlib

import pytest

from server import Server, binary


def in_image():
    return binary().read_bytes().startswith(b"#!")


@pytest.mark.skipif("not in_image()")
def test_it_runs_without_rights_on_a_root_that_nobody_writes_to():
    with Server() as server:
        process = pathlib.Path("/proc") / str(server.process.pid)
        status = dict(
            line.split(":\t", 1)
            for line in (process / "status").read_text().splitlines()
            if ":\t" in line
        )
        assert status["Name"] == "ebb"
        assert (
            set(status["Uid"].split()) == set(status["Gid"].split()) == {"65532"}
            and not status["Groups"].strip()
        )
        assert status["NoNewPrivs"] == "1"
        for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            assert int(status[kind], 16) == 0, kind
        mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
        root = os.readlink(process / "root")
        options = {mount[4]: mount[5].split(",") for mount in mounts}
        # The process sees paths below its root.
        assert "ro" in options[root if root in options else "/"]
        assert "rw" in options["/cache"] and "ro" in options["/models"]
