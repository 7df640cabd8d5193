//! 4-bit keys, grouped per token, by PM-KVQ's Direct Right Shift; static.

use super::shifted::{Shifted, Strategy};

pub(crate) const FORMAT: Shifted<4> = Shifted {
    strategy: Strategy::Direct,
    is_by_token: true,
};
