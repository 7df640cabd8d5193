//! Calibration: the gradient model against the backend that serves, and the command itself on tiny
//! models.

mod bench;
mod command;
mod gradient_model;
mod key_scales;
#[cfg(feature = "cuda-emulator")]
mod on_gpu;
mod tiny;
