//! 4-bit keys, grouped per token, by PM-KVQ's Modified Right Shift; static.

use super::shifted::{Shifted, Strategy};

pub(crate) const FORMAT: Shifted<4> = Shifted {
    strategy: Strategy::Modified,
    is_by_token: true,
};
