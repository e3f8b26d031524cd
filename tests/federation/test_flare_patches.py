"""What FLARE does without each change of foedus: where one of these tests fails, the change is needless and goes."""

import inspect
import json
import struct
import subprocess
import sys

import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'foedus[flare]'")

from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.fuel.f3.drivers.socket_conn import SocketConnection
from nvflare.private.defs import SysCommandTopic, TrainingTopic

from foedus.federation.flare.controller import FoedusController
from foedus.federation.flare.patches import CHECK_SECONDS, limit_frames, look_at_tasks_often


class Line(SocketConnection):
    """A connection on which a frame begins that is said to take 100 MB."""

    SIZE = 100_000_000

    def __init__(self):
        self.name, self.rooms = "test", []

    def read_into(self, buffer, offset, length):
        self.rooms.append(len(buffer))
        if len(self.rooms) > 1:
            raise EOFError
        buffer[:] = struct.pack(">IHBBHHHH", self.SIZE, 0, 1, 0, 0, 1, 0, 0)


def test_flare_makes_room_for_as_much_as_a_frame_says(monkeypatch):
    line = Line()
    with pytest.raises(EOFError):
        line.read_frame()
    assert line.rooms == [16, Line.SIZE]
    monkeypatch.setattr(SocketConnection, "read_frame", SocketConnection.read_frame)  # put back at the end
    limit_frames(lambda length: length > 1_000_000)
    line = Line()
    with pytest.raises(EOFError):
        line.read_frame()
    assert max(line.rooms) < 100_000


COMMANDS = """
import json
from nvflare.private.fed.client.admin_commands import AdminCommands
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from foedus.federation.flare.patches import close_commands
def names():
    topics = [topic for one in ClientRequestProcessors.request_processors for topic in one.get_topics()]
    return topics, [one.get_command_name() for one in AdminCommands.commands]
before = names()
close_commands()
print(json.dumps([before, names()]))
"""


def test_flare_answers_commands_that_no_job_needs():
    process = subprocess.run([sys.executable, "-c", COMMANDS], capture_output=True, text=True, check=True)
    (topics, commands), (topics_left, commands_left) = json.loads(process.stdout.splitlines()[-1])
    gone, commands_gone = {*topics} - {*topics_left}, {*commands} - {*commands_left}
    assert {SysCommandTopic.SHELL, TrainingTopic.DELETE_RUN} <= gone, gone
    assert {"show_stats", "show_errors", "configure_job_log"} <= commands_gone, commands_gone


def test_flare_looks_at_its_tasks_at_its_own_pace():
    communicator = WFCommServer()
    super(FoedusController, FoedusController("task")).set_communicator(communicator)
    assert communicator._task_check_period != CHECK_SECONDS, "FLARE reads the period of its controller now"
    look_at_tasks_often(communicator)
    assert communicator._task_check_period == CHECK_SECONDS
    assert "self._task_check_period" in inspect.getsource(WFCommServer._monitor_tasks)
