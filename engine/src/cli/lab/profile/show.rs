//! `ebb profile show`: bars of bits in the terminal.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use ebb_kernels::formats::rotation::Rotation;
use ebb_kernels::formats::{FormatId, RecordShape};
use ebb_kernels::kv::Side;
use ebb_models::model::KeyScales;
use ebb_serving::kv_profile::{Profile, RecentContext, width};

use super::{svg, title};

use crate::cli::error::CliError;
use crate::cli::generate::print;

/// Characters of a bar of 16 bits.
const BAR_CHARS: f64 = 24.0;

/// Which profile, and where its drawing goes.
#[derive(Debug, Clone, Args)]
pub(super) struct ShowArgs {
    /// The profile.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Where the shrink order stands at this mean width, instead of its end.
    #[arg(long, value_name = "BITS")]
    at: Option<f64>,
    /// Write the bars as SVG, too.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Where each page of a profile stands.
pub(super) struct Shown {
    /// Model and method.
    pub(super) title: String,
    /// Mean stored bits of all pages.
    pub(super) mean_bits: f64,
    /// Keys and values of each layer.
    pub(super) layers: Vec<[Page; 2]>,
}

/// A page's format.
#[derive(Clone, Copy)]
pub(super) struct Page {
    pub(super) format: FormatId,
    /// Stored bits an element.
    pub(super) bits: f64,
}

impl ShowArgs {
    pub(super) fn run(&self) -> Result<(), CliError> {
        if let Some(bits) = self.at.filter(|b| !(1.0..=16.0).contains(b)) {
            return Err(CliError::Usage(format!(
                "--at {bits} is no width; give a number of bits from 1 to 16"
            )));
        }
        let profile = Profile::read(&self.file)?;
        let shown = Shown::new(&profile, self.at)?;
        if let Some(path) = &self.svg {
            let place = path.display();
            let written = std::fs::write(path, svg::bars(&shown));
            written.map_err(CliError::io(format!("write {place}")))?;
        }
        print(&mut std::io::stdout(), &(bars(&shown) + &footer(&profile)))
    }
}

impl Shown {
    /// At a width of the shrink order, or at its end.
    pub(super) fn new(profile: &Profile, at: Option<f64>) -> Result<Self, CliError> {
        let geometry = profile.geometry();
        let formats = profile.formats(geometry, at, profile.protect())?.sealed;
        let page = |page: usize| -> Result<Page, CliError> {
            let shape = RecordShape {
                side: Side::of_page(page),
                head_dim: geometry.head_dim,
            };
            let bits = formats[page].stored_bits(shape);
            Ok(Page {
                format: formats[page],
                bits: bits.map_err(|e| CliError::Usage(e.to_string()))?,
            })
        };
        let layers = (0..geometry.layers).map(|l| Ok([page(2 * l)?, page(2 * l + 1)?]));
        Ok(Self {
            title: title(profile),
            mean_bits: width(geometry, &formats).map_err(CliError::Usage)?,
            layers: layers.collect::<Result<_, CliError>>()?,
        })
    }
}

/// A line for each layer: keys, then values.
fn bars(shown: &Shown) -> String {
    let mut text = format!("{}: {:.3} bits\n", shown.title, shown.mean_bits);
    let column = BAR_CHARS as usize + 16;
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{:>5}  {:<column$}values", "layer", "keys");
    for (layer, [k, v]) in shown.layers.iter().enumerate() {
        let cell = |page: &Page| format!("{} {:.2} {}", bar(page.bits), page.bits, page.format);
        let (k, v) = (cell(k), cell(v));
        let _ = writeln!(text, "{layer:>5}  {k:<column$}{v}");
    }
    text
}

/// Blocks of an eighth of a character.
fn bar(bits: f64) -> String {
    const PARTS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let eighths = (bits / 16.0 * BAR_CHARS * 8.0).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        bar.push(PARTS[eighths % 8]);
    }
    bar
}

fn footer(profile: &Profile) -> String {
    let mut text = format!("{} steps", profile.shrink_order().len());
    if let Some(bits) = profile.budget_bits {
        let _ = write!(text, "; floors for a budget of {bits} bits");
    }
    text += match profile.rotation() {
        Rotation::NONE => "",
        Rotation { k: true, v: false } => "; keys rotated",
        Rotation { k: false, v: true } => "; values rotated",
        Rotation { k: true, v: true } => "; keys and values rotated",
    };
    text.push('\n');
    if let Some(KeyScales { format, alpha, .. }) = &profile.key_scales {
        let (least, most) = alpha
            .iter()
            .fold((1.0, 0.0), |(least, most): (f64, f64), a| {
                (least.min(*a), most.max(*a))
            });
        let _ = writeln!(
            text,
            "key scales for {format}, folded into the weights: exponents from {least:.2} to \
             {most:.2}"
        );
    }
    if let Some(recent) = &profile.recent {
        text += &shares(recent);
    }
    text
}

/// KVmix's shares, one line each, with what they keep.
fn shares(recent: &RecentContext) -> String {
    let ratios = &recent.ratios;
    let mut shares: Vec<f64> = ratios.k.iter().chain(&ratios.v).copied().collect();
    shares.sort_by(f64::total_cmp);
    shares.dedup();
    let line = |share: f64| {
        let layers = |all: &[f64]| {
            let has = all.iter().enumerate().filter(|(_, r)| **r == share);
            let has: Vec<String> = has.map(|(layer, _)| layer.to_string()).collect();
            match has.len() {
                0 => "none".to_owned(),
                all_of if all_of == all.len() => "all".to_owned(),
                _ => has.join(" "),
            }
        };
        format!(
            "recent share {share}: keys of layers: {}; values: {}\n",
            layers(&ratios.k),
            layers(&ratios.v)
        )
    };
    shares.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_bits() {
        let width = |bits| bar(bits).chars().count();
        assert_eq!((width(16.0), width(8.0), width(0.0)), (24, 12, 0));
        assert_eq!(bar(16.0 / 24.0 * 2.5), "██▌");
        let page = |format, bits| Page { format, bits };
        let shown = Shown {
            title: "m".to_owned(),
            mean_bits: 9.125,
            layers: vec![
                [page(FormatId::F16, 16.0), page(FormatId::Int2, 2.5)],
                [page(FormatId::Int4, 4.25), page(FormatId::Int8, 8.5)],
            ],
        };
        let text = bars(&shown);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "m: 9.125 bits");
        assert!(lines[2].ends_with("███▊ 2.50 int2"), "{text}");
        // Both value columns begin at the same character.
        let starts = |line: &str, bar: &str| line.rfind(bar).map(|at| line[..at].chars().count());
        assert_eq!(
            starts(lines[2], " ███▊"),
            starts(lines[3], " ████████████▊"),
            "{text}"
        );
    }
}
