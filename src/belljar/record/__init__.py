"""Records of sandboxes: written while they run, then read, compared, replayed and exported."""

from belljar.record.format import INLINE
from belljar.record.reader import Record, read
from belljar.record.recorder import Recorder

__all__ = ["INLINE", "Record", "Recorder", "read"]
