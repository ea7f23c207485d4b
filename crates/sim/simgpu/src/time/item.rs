//! The items of a ring.

/// The next action of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// A kernel, or a graph of kernels, that has the engine for this long if nothing else runs.
    Busy { ns: u64 },
    /// A copy: takes this long if no other one runs, with or without a turn, because copy engines are not the kernels'.
    Copy { ns: u64 },
    /// Takes no time; when it was reached is kept.
    Mark,
    /// Until that channel of the same engine has passed an item.
    Wait { channel: u64, seq: u64 },
    /// Until its process marks it as ready: host functions and what else an engine cannot know.
    Hold,
    /// A kernel that runs until as many of its group, which has its number among its stream's in it, run at the same time.
    Spin { ranks: u32, group: u64 },
}

/// One item as an engine sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) op: Op,
    /// Not before this time; `u64::MAX`: not known yet.
    pub(crate) ready_ns: u64,
    /// When a spinning kernel met the others of its group.
    pub(crate) met_ns: Option<u64>,
}

const BUSY: u64 = 1;
const MARK: u64 = 2;
const WAIT: u64 = 3;
const HOLD: u64 = 4;
const SPIN: u64 = 5;
const COPY: u64 = 6;
const KIND_BITS: u32 = 8;
const VALUE_MAX: u64 = u64::MAX >> KIND_BITS;

impl Op {
    /// Two words, of which the lowest byte is the kind.
    pub(super) fn to_words(self) -> [u64; 2] {
        let word = |kind: u64, value: u64| kind | value.min(VALUE_MAX) << KIND_BITS;
        match self {
            Self::Busy { ns } => [word(BUSY, ns), 0],
            Self::Copy { ns } => [word(COPY, ns), 0],
            Self::Mark => [MARK, 0],
            Self::Wait { channel, seq } => [word(WAIT, channel), seq],
            Self::Hold => [HOLD, 0],
            Self::Spin { ranks, group } => [word(SPIN, u64::from(ranks)), group],
        }
    }

    /// Any words are some item; what is none takes no time.
    pub(super) fn from_words([word, argument]: [u64; 2]) -> Self {
        let value = word >> KIND_BITS;
        match word & ((1 << KIND_BITS) - 1) {
            BUSY => Self::Busy { ns: value },
            COPY => Self::Copy { ns: value },
            WAIT => Self::Wait { channel: value, seq: argument },
            HOLD => Self::Hold,
            SPIN => Self::Spin { ranks: value as u32, group: argument },
            _ => Self::Mark,
        }
    }
}
