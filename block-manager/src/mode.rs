//! What an operator chooses for times when KV memory is short.

/// What gives way when the KV memory is full.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// Nothing shrinks: sequences lose their memory and are computed again, as in engines whose
    /// cache has one width.
    #[default]
    PreemptOnly,
    /// Blocks shrink while they are served, as far as memory asks for it (PM-KVQ, made online). A
    /// sequence loses its memory only when nothing is left to shrink.
    Progressive,
    /// Every block shrinks to its floor as soon as it is sealed, before anything but its own chunk
    /// of a prompt reads it, as KIVI, Kitty and KVmix serve. What a sequence reads then depends on
    /// nothing but itself.
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
    /// Only for room at the floor: what the prefix cache keeps shrinks or is evicted to let it in,
    /// and what runs already shrinks.
    #[default]
    Degrade,
    /// For room at 16 bit as well, as in [`Mode::PreemptOnly`]: requests queue, and what runs
    /// shrinks only instead of being preempted.
    Queue,
}
