//! Checks of the kernels against references, on random and hostile inputs: NaN in all memory that
//! no token has written, ragged lengths, scores far apart. They run on a GPU as on the emulator.

mod attention;
mod experts;
mod formats;
mod mixed;
mod model;
mod online;
mod packed;
mod pages;
mod polar;
mod prefill;
mod products;
mod records;
mod recurrent;
mod reference;
mod rng;
mod sample;
mod sample_reference;
mod shrunk;
mod table;

use std::sync::Arc;

use super::driver::Device;
use super::probe::ProbeError;
pub use pages::Pages;
pub use rng::Rng;
use table::Report;

/// Attention alone, at 16 bit and over pages of any format; prints a table; whether all passed.
/// `quick`: few and short cases, for tools that slow the device down.
pub fn attention(device: &Arc<Device>, quick: bool) -> Result<bool, ProbeError> {
    let mut report = Report::default();
    if quick {
        attention::check_quick(device, &mut report)?;
        mixed::check_quick(device, &mut report)?;
    } else {
        attention::check(device, &mut report)?;
        prefill::check(device, &mut report)?;
        mixed::check(device, &mut report)?;
    }
    Ok(report.finish())
}

/// Attention at 16 bit, RoPE and norms of heads of every width; `quick`: of a few; prints a table;
/// whether all passed.
pub fn heads(device: &Arc<Device>, quick: bool) -> Result<bool, ProbeError> {
    let mut report = Report::default();
    attention::check_heads(device, quick, &mut report)?;
    Ok(report.finish())
}

/// Attention of layers with windows, soft caps and sinks, at 16 bit and over pages of any format;
/// prints a table; whether all passed. `quick`: few and short cases.
pub fn scores(device: &Arc<Device>, quick: bool) -> Result<bool, ProbeError> {
    let mut report = Report::default();
    if quick {
        attention::check_scores_quick(device, &mut report)?;
        mixed::check_scores_quick(device, &mut report)?;
    } else {
        attention::check_scores(device, &mut report)?;
        mixed::check_scores(device, &mut report)?;
    }
    Ok(report.finish())
}

/// Matrix products and whole models; prints a table; whether all passed.
pub fn models(device: &Arc<Device>) -> Result<bool, ProbeError> {
    let mut report = Report::default();
    model::check(device, &mut report)?;
    Ok(report.finish())
}

/// Matrix products of few rows, `quick`: a few of each kind; prints a table; whether all passed.
pub fn products(device: &Arc<Device>, quick: bool) -> Result<bool, ProbeError> {
    let mut report = Report::default();
    products::check(device, quick, &mut report)?;
    Ok(report.finish())
}

/// Layers of experts, `quick`: of few rows; prints a table; whether all passed.
pub fn experts(device: &Arc<Device>, quick: bool) -> Result<bool, ProbeError> {
    let mut report = Report::default();
    experts::check(device, quick, &mut report)?;
    model::check_experts(device, &mut report)?;
    Ok(report.finish())
}

/// Recurrent layers, `quick`: of one shape, and models that have some; prints a table; whether all
/// passed.
pub fn recurrences(device: &Arc<Device>, quick: bool) -> Result<bool, ProbeError> {
    let mut report = Report::default();
    recurrent::check(device, quick, &mut report)?;
    model::check_recurrent(device, &mut report)?;
    Ok(report.finish())
}

/// Matrix products of packed weights; prints a table; whether all passed.
pub fn packed_products(device: &Arc<Device>, quick: bool) -> Result<bool, ProbeError> {
    let mut report = Report::default();
    packed::check(device, quick, &mut report)?;
    Ok(report.finish())
}

/// Whole models whose blocks shrink; prints a table; whether all passed.
pub fn shrinking_models(device: &Arc<Device>) -> Result<bool, ProbeError> {
    let mut report = Report::default();
    shrunk::check(device, &mut report)?;
    Ok(report.finish())
}

/// Samples; prints a table; whether all passed.
pub fn sampling(device: &Arc<Device>) -> Result<bool, ProbeError> {
    let mut report = Report::default();
    sample::check(device, &mut report)?;
    Ok(report.finish())
}

/// Page formats: transcoding, decoding, and whole models whose blocks shrink; prints a table;
/// whether all passed.
pub fn formats(device: &Arc<Device>) -> Result<bool, ProbeError> {
    let mut report = Report::default();
    formats::check(device, &mut report)?;
    polar::check(device, &mut report)?;
    shrunk::check(device, &mut report)?;
    Ok(report.finish())
}
