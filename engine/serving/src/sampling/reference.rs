//! What a device samples, by the parts of the CPU sampler: what devices are compared with, and what
//! scripted ones use.

use ebb_kernels::backend::{LogitEdit, SampleFailure, SampleRequest, SampledToken};

use super::edits::repeated;
use super::filter::Filter;
use super::logprobs::Distribution;
use super::scan::Scan;
use super::{SampleError, SamplingOptions};

/// The token that `request` gives from `logits`; alternatives are appended to `top`. `before` are
/// the tokens that the step before sampled.
pub(crate) fn sample(
    logits: &[f32],
    request: &SampleRequest,
    edits: &[LogitEdit],
    before: &[u32],
    top: &mut Vec<(u32, f32)>,
) -> SampledToken {
    let first_top = top.len() as u32;
    let mut sampled = SampledToken {
        token: Err(SampleFailure::NotFinite),
        logprob: f32::NAN,
        first_top,
        top: 0,
    };
    match chosen(logits, request, edits, before) {
        Ok(token) => {
            sampled.token = Ok(token);
            if let Some(count) = request.logprobs {
                let mut scan = Scan::default();
                scan.run(logits).expect("sound before its edits");
                let report = Distribution::of(logits, &scan, count).report(logits[token as usize]);
                sampled.logprob = report.logprob;
                sampled.top = report.top.len() as u32;
                top.extend(report.top);
            }
        }
        Err(SampleError::NoCandidate) => sampled.token = Err(SampleFailure::NoCandidate),
        Err(_) => {}
    }
    sampled
}

fn chosen(
    logits: &[f32],
    request: &SampleRequest,
    edits: &[LogitEdit],
    before: &[u32],
) -> Result<u32, SampleError> {
    Scan::default().run(logits)?;
    let mut edited = logits.to_vec();
    let e = &request.edits;
    let mut own = edits[e.first as usize..][..e.len as usize].to_vec();
    if let Some(also) = e.also {
        let id = before[also as usize];
        match own.iter_mut().find(|entry| entry.id == id) {
            Some(entry) => entry.count += 1,
            None => own.push(LogitEdit {
                id,
                bias: 0.0,
                count: 1,
                masked: false,
                in_prompt: false,
            }),
        }
    }
    for edit in &own {
        let Some(logit) = edited.get_mut(edit.id as usize) else {
            continue;
        };
        if edit.masked {
            *logit = f32::NEG_INFINITY;
        }
        *logit += edit.bias;
        if edit.count > 0 || edit.in_prompt {
            *logit = repeated(*logit, e.repetition);
        }
        if edit.count > 0 {
            *logit = *logit - e.frequency * edit.count as f32 - e.presence;
        }
    }
    let mut scan = Scan::default();
    scan.run(&edited)?;
    if request.temperature == 0.0 {
        return Ok(scan.argmax(&edited));
    }
    let options = SamplingOptions {
        temperature: request.temperature,
        top_k: request.top_k,
        top_p: request.top_p,
        min_p: request.min_p,
        ..Default::default()
    };
    let params = options.validate(logits.len()).expect("in range");
    Ok(Filter::default().sample(&edited, &scan, &params, request.bits))
}
