//! Calibration's gradients: the gradient model against the backend that serves, and a GPU against
//! the CPU.

mod gradient_model;
mod key_scales;
#[cfg(feature = "cuda-emulator")]
mod on_gpu;
mod tiny;
