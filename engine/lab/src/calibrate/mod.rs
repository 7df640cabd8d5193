//! What each page of a model is worth, and the floors and the shrink order that follow from it.
//!
//! Three methods say what a page (layer, side) loses at a format:
//! - [`measured`]: the mean KL divergence from the 16-bit run when that page alone stands at the
//!   format, teacher-forced over text through the paged cache that serves. The honest one, and the
//!   dearest.
//! - [`pmkvq`]: PM-KVQ's first-order sensitivity (arXiv 2505.18610), from one backward pass a
//!   sample.
//! - [`kvmix`]: KVmix's gradient norms (arXiv 2506.08018), which know layers and sides but no
//!   formats.
//!
//! [`key_scales`] finds PM-KVQ's channel scales for per-token keys.
//!
//! Whatever the method, losses are taken to add up. [`budget`] chooses floors for a byte budget,
//! [`shrink_order`] the order in which pages come down to them.

pub mod budget;
mod format_choices;
mod gradients;
mod hull;
pub mod key_scales;
pub mod kvmix;
mod losses;
pub mod measured;
pub mod pmkvq;
mod rank;
mod sensitivities;
mod shrink_order;

pub use ebb_gradients::LayerGradients;
pub use format_choices::FormatChoices;
pub use gradients::{GpuGradients, Gradients, GradientsError, Probes, Source};
pub use hull::{Choice, PricedChange, hull, order};
pub use losses::{Losses, LossesError};
pub use rank::spearman;
pub use sensitivities::Sensitivities;
pub use shrink_order::shrink_order;
