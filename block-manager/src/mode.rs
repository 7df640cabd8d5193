//! What an operator chooses for when KV memory is short.

/// What happens when the KV memory is full.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// Nothing shrinks: sequences are preempted and computed again, as in engines whose KV cache
    /// has one precision.
    #[default]
    PreemptOnly,
    /// Blocks shrink while they are served, as far as memory demands (PM-KVQ, made online). A
    /// sequence is preempted only when nothing is left to shrink.
    Progressive,
    /// Every block shrinks to its floor as soon as it is sealed, as in KIVI, Kitty and KVmix. Only
    /// the tokens of its own chunk of a prompt read it at 16 bit, and those behind it while KVmix's
    /// rule keeps it as recent. What a sequence reads then depends on nothing but itself.
    Static,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Self; 3] = [Self::PreemptOnly, Self::Static, Self::Progressive];

    /// Its name in options, answers and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::PreemptOnly => "preempt-only",
            Self::Static => "static",
            Self::Progressive => "progressive",
        }
    }

    /// Whether blocks shrink, and admission counts on it.
    pub fn shrinks(self) -> bool {
        self != Self::PreemptOnly
    }
}

/// What a request waits for before it gets memory, where blocks can shrink.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Admission {
    /// Memory for its tokens at the floor. Cached blocks shrink or are evicted for it, and so do
    /// blocks of running sequences.
    #[default]
    Degrade,
    /// Also room at 16 bit, as in [`Mode::PreemptOnly`]. Blocks of running sequences shrink only
    /// where a sequence would be preempted otherwise.
    Queue,
}
