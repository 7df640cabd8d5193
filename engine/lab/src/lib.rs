//! The lab: what KV formats cost a model, which of its pages can do with less, and answers computed
//! again. Nothing that serves needs it.

pub mod calibrate;
pub mod eval;
pub mod replay;
