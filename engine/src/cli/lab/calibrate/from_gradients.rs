//! The gradient methods: one pass there and back a sample.

use ebb_kernels::kv::Side;
use ebb_lab::calibrate::{Gradients, LayerGradients, Losses, kvmix, pmkvq};
use ebb_models::Opened;

use super::CalibrateArgs;
use crate::cli::error::CliError;
use crate::cli::lab::eval::{advance, bar};

/// Named figures of a layer, or why there are none.
type Figures = Result<Vec<(String, f64)>, CliError>;

impl CalibrateArgs {
    /// KVmix's norms.
    pub(super) fn gradient_norms(
        &self,
        opened: &Opened,
        gradients: &mut Gradients<'_>,
        windows: &[u32],
        figures: &mut Losses,
    ) -> Result<(), CliError> {
        let of_layer = |sample: usize, layer: usize, found: &LayerGradients| -> Figures {
            let [k, v] = kvmix::norms(found);
            let name = |side| kvmix::name(sample, layer, side);
            Ok(vec![(name(Side::K), k), (name(Side::V), v)])
        };
        self.each_sample(opened, gradients, windows, figures, &of_layer)
    }

    /// PM-KVQ's first-order losses.
    pub(super) fn first_order(
        &self,
        opened: &Opened,
        gradients: &mut Gradients<'_>,
        windows: &[u32],
        figures: &mut Losses,
    ) -> Result<(), CliError> {
        let geometry = opened.model.spec.kv_geometry();
        let rotation = self.rotation();
        rotation.check(geometry.head_dim).map_err(|_| {
            CliError::Usage(format!(
                "--rotate-k and --rotate-v need heads of a power of two of channels; this model's \
                 have {}",
                geometry.head_dim
            ))
        })?;
        let of_layer = |sample: usize, layer: usize, found: &LayerGradients| -> Figures {
            let losses = pmkvq::of_layer(geometry, rotation, found).map_err(|e| {
                CliError::Usage(format!(
                    "layer {layer} cannot be calibrated with this text: {e}"
                ))
            })?;
            let named = losses
                .into_iter()
                .map(|s| (pmkvq::name(sample, layer, s.side, s.format), s.loss));
            Ok(named.collect())
        };
        self.each_sample(opened, gradients, windows, figures, &of_layer)
    }

    /// Keeps each sample's figures once all of its layers are there.
    fn each_sample(
        &self,
        opened: &Opened,
        gradients: &mut Gradients<'_>,
        windows: &[u32],
        figures: &mut Losses,
        of_layer: &(dyn Fn(usize, usize, &LayerGradients) -> Figures + Sync),
    ) -> Result<(), CliError> {
        let spec = &opened.model.spec;
        let bar = bar();
        let all = self.samples() * spec.layers.len();
        for (sample, window) in windows.chunks_exact(self.ctx()).enumerate() {
            let mut done = sample * spec.layers.len();
            advance(&bar, done, all);
            if figures.has(&complete(sample)) {
                continue;
            }
            let mut found = Ok(Vec::new());
            let mut visit = |layer: usize, found_here: LayerGradients| {
                if let Ok(known) = &mut found {
                    match of_layer(sample, layer, &found_here) {
                        Ok(figures) => known.extend(figures),
                        Err(error) => found = Err(error),
                    }
                }
                done += 1;
                advance(&bar, done, all);
            };
            let loss = gradients.run(window, self.stride(), &mut visit)?;
            for (name, value) in found? {
                if !value.is_finite() {
                    return Err(CliError::Usage(format!(
                        "the gradients of window {} are not finite ({name} is {value}); calibrate \
                         with another text",
                        sample + 1
                    )));
                }
                figures.add(&name, value)?;
            }
            figures.add(&complete(sample), loss)?;
        }
        bar.finish_and_clear();
        Ok(())
    }
}

/// Name of a sample's loss, which is noted last.
fn complete(sample: usize) -> String {
    format!("sample{sample}.loss")
}
