//! The command line `ebb`: flags into checked configurations, answers into text.

pub mod cli;
