//! The command `ebb calibrate` on tiny models.

mod bench;
mod command;
mod families;
#[cfg(feature = "cuda-emulator")]
mod on_gpu;
mod presets;
#[expect(dead_code, reason = "the lab's tests need more models")]
#[path = "../../lab/tests/gradients/tiny.rs"]
mod tiny;
