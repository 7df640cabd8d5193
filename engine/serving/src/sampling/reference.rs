//! A device's draw by the parts of the CPU sampler: what devices are compared with, and what
//! scripted ones use.

use ebb_kernels::backend::{Draw, DrawError, Drawn, LogitEdit};

use super::filter::Filter;
use super::logprobs::Distribution;
use super::scan::Scan;
use super::{SampleError, SamplingOptions};

/// The token that `draw` gives from `logits`; alternatives are appended to `top`. `before` are the
/// tokens that the step before drew.
pub(crate) fn draw(
    logits: &[f32],
    draw: &Draw,
    edits: &[LogitEdit],
    before: &[u32],
    top: &mut Vec<(u32, f32)>,
) -> Drawn {
    let first_top = top.len() as u32;
    let mut drawn = Drawn {
        token: Err(DrawError::NotFinite),
        logprob: f32::NAN,
        first_top,
        top: 0,
    };
    match chosen(logits, draw, edits, before) {
        Ok(token) => {
            drawn.token = Ok(token);
            if let Some(count) = draw.logprobs {
                let mut scan = Scan::default();
                scan.run(logits).expect("sound before its edits");
                let report = Distribution::of(logits, &scan, count).report(logits[token as usize]);
                drawn.logprob = report.logprob;
                drawn.top = report.top.len() as u32;
                top.extend(report.top);
            }
        }
        Err(SampleError::NoCandidate) => drawn.token = Err(DrawError::NoCandidate),
        Err(_) => {}
    }
    drawn
}

fn chosen(
    logits: &[f32],
    draw: &Draw,
    edits: &[LogitEdit],
    before: &[u32],
) -> Result<u32, SampleError> {
    Scan::default().run(logits)?;
    let mut edited = logits.to_vec();
    let e = &draw.edits;
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
            *logit = if *logit > 0.0 {
                *logit / e.repetition
            } else {
                *logit * e.repetition
            };
        }
        if edit.count > 0 {
            *logit = *logit - e.frequency * edit.count as f32 - e.presence;
        }
    }
    let mut scan = Scan::default();
    scan.run(&edited)?;
    if draw.temperature == 0.0 {
        return Ok(scan.argmax(&edited));
    }
    let options = SamplingOptions {
        temperature: draw.temperature,
        top_k: draw.top_k,
        top_p: draw.top_p,
        min_p: draw.min_p,
        ..Default::default()
    };
    let params = options.validate(logits.len()).expect("in range");
    Ok(Filter::default().draw(&edited, &scan, &params, draw.bits))
}
