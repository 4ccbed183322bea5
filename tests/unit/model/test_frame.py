"""The output of a visit, in frames: complete again however the network cuts it."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.model.node import Frame, FrameKind, frames

SAID = st.lists(st.builds(Frame, st.sampled_from(FrameKind), st.binary(max_size=40)), max_size=8)


@given(SAID, st.integers(1, 17))
def test_frames_come_out_as_they_went_in_whatever_the_pieces(said: list[Frame], size: int) -> None:
    text = b"".join(frame.packed() for frame in said)
    assert list(frames(text[at : at + size] for at in range(0, len(text), size))) == said


def test_a_frame_that_is_cut_off_is_not_given_out() -> None:
    assert list(
        frames([Frame(FrameKind.OUT, b"whole").packed(), Frame(FrameKind.OUT, b"not whole").packed()[:-1]])
    ) == [Frame(FrameKind.OUT, b"whole")]
