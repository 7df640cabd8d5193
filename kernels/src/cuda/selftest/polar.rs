//! Products over polar keys, by tables and on tensor cores, against those of what the CPU's codec
//! decodes.

use std::sync::Arc;

use super::table::Report;
use crate::cuda::driver::Device;
use crate::cuda::probe::{PolarProbe, PolarWay, ProbeError};

/// Tables, unit vectors, radii and their products are rounded to fp16.
const LIMIT: f64 = 2e-3;

/// Several blocks a CTA on the emulator, and more than are unlike.
const BLOCKS: usize = 70;

pub(super) fn check(device: &Arc<Device>, report: &mut Report) -> Result<(), ProbeError> {
    for way in PolarWay::ALL {
        // Nothing is rounded but sums.
        let limit = if way == PolarWay::Rows { 1e-5 } else { LIMIT };
        let error = PolarProbe::new(device, way, BLOCKS)?.error()?;
        report.check(&format!("products, {}", way.name()), error, limit);
    }
    Ok(())
}
