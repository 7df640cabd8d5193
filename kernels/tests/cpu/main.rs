//! The CPU backend as its users see it.

mod common;
mod hostile;
mod invariance;
mod mixed;
mod oracle;
mod packed;
