//! The registry of page formats as headers for the CUDA sources.
//!
//! `format_entries.cuh` has a line for each format that has a number on the GPU, as macros;
//! `format_folders.cuh` includes the `device.cuh` of each one's folder.

use std::path::Path;
use std::{fs, io};

/// A line of the registry, in its words.
struct Entry {
    folder: &'static str,
    variant: &'static str,
    /// The kernel that writes its pages, or `clips`.
    writer: &'static str,
    /// How decode attention reads them, or the format that this one clips.
    reader: &'static str,
    bits: u32,
}

macro_rules! formats {
    ($($group:ident [$($family:ident),*] {
        $($variant:ident $name:ident: $writer:ident $reader:ident $($bits:literal)?,)+
    })+) => {
        const REGISTRY: &[Entry] = &[$($(Entry {
            folder: concat!("src/formats/", stringify!($group), "/", stringify!($name)),
            variant: stringify!($variant),
            writer: stringify!($writer),
            reader: stringify!($reader),
            bits: 0 $(+ $bits)?,
        }),+),+];

        /// What formats of a group share.
        const SHARED: &[&str] = &[$($(
            concat!("src/formats/", stringify!($group), "/", stringify!($family), "/device.cuh"),
        )*)+];
    };
}
include!("../src/formats/registry.rs");

/// Formats of which a number fits into what decode attention keeps of a block.
const READ_IN_PLACE_MAX: usize = 15;

/// The files that the headers are made of.
pub(super) fn sources() -> impl Iterator<Item = String> {
    let own = numbered().map(|e| format!("{}/device.cuh", e.folder));
    let shared = SHARED.iter().map(|file| (*file).to_owned());
    own.chain(shared)
        .chain(["src/formats/registry.rs".to_owned()])
}

/// Writes the headers.
pub(super) fn write_headers(out: &Path) -> io::Result<()> {
    fs::write(out.join("format_entries.cuh"), entries())?;
    let folders: String = numbered()
        .map(|e| format!("#include \"{}/device.cuh\"\n", e.folder))
        .collect();
    fs::write(
        out.join("format_folders.cuh"),
        format!("{HEADER}#pragma once\n{folders}"),
    )
}

const HEADER: &str = "// Made of src/formats/registry.rs by build/formats.rs.\n";

/// Those with a number of their own, in its order.
fn numbered() -> impl Iterator<Item = &'static Entry> {
    REGISTRY.iter().filter(|e| e.writer != "clips")
}

fn entries() -> String {
    let mut text = format!("{HEADER}#pragma once\n\n// X(number, writer, reader, bits)\n");
    let all = numbered().enumerate().map(|(number, e)| {
        let writer = match e.writer {
            "transcode" => "kTranscode",
            "encode" => "kEncode",
            other => panic!("{}: no kernel of cuda/formats is called {other}", e.variant),
        };
        let reader = match e.reader {
            "rows" => "kRows",
            "codes" => "kCodes",
            "boosted" => "kBoosted",
            "polar" => "kPolar",
            "scratch" => "kScratch",
            other => panic!("{}: decode attention does not read {other}", e.variant),
        };
        assert!(
            e.reader == "scratch" || number < READ_IN_PLACE_MAX,
            "{}: decode attention tells {READ_IN_PLACE_MAX} formats apart; move the line up",
            e.variant
        );
        format!("k{}, {writer}, {reader}, {}", e.variant, e.bits)
    });
    define(&mut text, "EBB_FORMATS", all);
    text += "\n// X(number), of those that decode attention reads as codes or rows\n";
    let not_polar = numbered().filter(|e| !["polar", "scratch"].contains(&e.reader));
    define(
        &mut text,
        "EBB_FORMATS_IN_PLACE",
        not_polar.map(|e| format!("k{}", e.variant)),
    );
    text += "\n// X(bits), of codes that decode attention reads: from most to least, and back\n";
    let mut bits: Vec<u32> = numbered()
        .filter(|e| e.reader == "codes")
        .map(|e| e.bits)
        .collect();
    bits.sort_unstable();
    bits.dedup();
    define(
        &mut text,
        "EBB_CODE_BITS_DOWN",
        bits.iter().rev().map(u32::to_string),
    );
    define(
        &mut text,
        "EBB_CODE_BITS_UP",
        bits.iter().map(u32::to_string),
    );
    text
}

/// Appends a macro that calls its argument with each of `lines`.
fn define(text: &mut String, name: &str, lines: impl Iterator<Item = String>) {
    let calls: Vec<String> = lines.map(|line| format!("X({line})")).collect();
    *text += &format!("#define {name}(X) \\\n  {}\n", calls.join(" \\\n  "));
}
