"""What foedus changes of FLARE's private parts in a party's own process, and why there is no other way.

Nothing else of FLARE is changed anywhere. `tests/federation/test_flare_patches.py` shows for each change what FLARE
does without it; the test fails when a new version of FLARE makes the change needless.
"""

# pyright: reportMissingImports=false

from typing import Any

PIECE = 2**16  # bytes that are read at a time of what is dropped
NOTE = b"foedus: a message of this many bytes was dropped: "
CHECK_SECONDS = 0.005  # how often the communicator looks at its tasks; its own 0.2 s would be the time of a round


def limit_frames(is_too_long: Any) -> None:
    """Let FLARE's connections in this process read no frame that is too long.

    Why: FLARE makes room for a frame as soon as its first sixteen bytes say how long it is. Its limit, 2 GB, is a
    constant (`net_utils.MAX_FRAME_SIZE`), and its setting `max_message_size` is for what is sent.
    """
    from nvflare.fuel.f3.comm_error import CommError
    from nvflare.fuel.f3.drivers.socket_conn import SocketConnection
    from nvflare.fuel.f3.sfm.constants import Types
    from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

    def read_frame(self: Any) -> bytearray:
        start = bytearray(PREFIX_LEN)
        self.read_into(start, 0, PREFIX_LEN)
        prefix = Prefix.from_bytes(bytes(start))
        if prefix.length == PREFIX_LEN:
            return start
        if prefix.length < PREFIX_LEN + prefix.header_len:
            raise CommError(CommError.BAD_DATA, f"a frame of {prefix.length} bytes is shorter than its headers")
        if not is_too_long(prefix.length):
            frame = bytearray(prefix.length)
            frame[:PREFIX_LEN] = start
            self.read_into(frame, PREFIX_LEN, prefix.length - PREFIX_LEN)
            return frame
        if prefix.type != Types.DATA:
            raise CommError(
                CommError.BAD_DATA, f"a frame of {prefix.length} bytes is longer than any that is announced"
            )
        head = bytearray(PREFIX_LEN + prefix.header_len)
        self.read_into(head, PREFIX_LEN, prefix.header_len)
        rest = prefix.length - len(head)
        note, piece = NOTE + str(rest).encode(), bytearray(PIECE)
        while rest:
            count = min(rest, PIECE)
            self.read_into(piece, 0, count)
            rest -= count
        prefix.length = len(head) + len(note)
        prefix.to_buffer(head, 0)
        return head + note

    SocketConnection.read_frame = read_frame


def close_commands() -> None:
    """Leave FLARE, in this process, only the commands that a job needs; nothing else is answered.

    Why: FLARE authorises commands by headers that its server writes, and some not at all: 'delete_run' removes any
    folder of the kit by its name. A site's authorization.json has no say in these, and no setting takes them away.
    """
    from nvflare.apis.fl_constant import AdminCommandNames
    from nvflare.private.defs import SysCommandTopic, TrainingTopic
    from nvflare.private.fed.client.admin_commands import AdminCommands
    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

    topics = {
        TrainingTopic.CHECK_RESOURCE, TrainingTopic.CANCEL_RESOURCE, TrainingTopic.DEPLOY, TrainingTopic.START_JOB,
        TrainingTopic.NOTIFY_JOB_STATUS, TrainingTopic.CHECK_STATUS, TrainingTopic.ABORT,
        SysCommandTopic.REPORT_VERSION,
    }  # fmt: skip
    names = {AdminCommandNames.CHECK_STATUS, AdminCommandNames.ABORT, AdminCommandNames.SHUTDOWN}
    processors, commands = ClientRequestProcessors.request_processors, AdminCommands.commands
    processors[:] = [one for one in processors if {*one.get_topics()} <= topics]
    commands[:] = [one for one in commands if one.get_command_name() in names]


def look_at_tasks_often(communicator: Any) -> None:
    """Let a communicator of FLARE's look at its tasks every CHECK_SECONDS.

    Why: FLARE 2.9 stores the period that a controller is given under a name that its communicator does not read.
    """
    communicator._task_check_period = CHECK_SECONDS
