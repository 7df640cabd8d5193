//! Low-bit pages of a real model, scored through the engine's own path.

use std::path::Path;

use ebb_lab::eval::{Comparison, Scoring, Trials, compare, lay_out};
use ebb_serving::device::BackendOptions;
use ebb_serving::kv_spec::KvSpec;
use ebb_tests::real_model::default_model;

/// Compares specifications, all with or all without rotation, on the first `ctx` tokens of the test
/// text.
fn run(specs: &[&str], ctx: usize) -> Vec<Comparison> {
    let path = default_model();
    let opened = ebb_models::open(path.to_str().expect("a UTF-8 path"), None).expect("it opens");
    let model = &opened.model;
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/wikitext2-test-head.txt");
    let text = ebb_lab::eval::read_text(&text).expect("the text is there");
    let tokens = opened.tokenizer.encode(&text, false, true);
    let tokens = tokens.expect("it encodes");

    let parsed: Vec<KvSpec> = specs.iter().map(|s| s.parse().expect("a spec")).collect();
    let formats = parsed.iter().map(|s| s.formats(model.spec.kv_geometry()));
    let formats: Vec<_> = formats.map(|f| f.expect("formats")).collect();
    let (layout, positions) = lay_out(model.spec.kv_geometry(), &formats, ctx).expect("a layout");
    let frames = (256 << 20) / layout.frame().frame_bytes as u32;
    let options = BackendOptions {
        layout: Some(layout.clone()),
        rotation: parsed[0].rotation(),
        expand_weights: true,
        ..BackendOptions::cpu(2)
    };
    let backend = options.start(model, frames).expect("it loads");
    let mut trials = Trials::new(backend, frames, layout, positions);
    let names: Vec<String> = specs.iter().map(ToString::to_string).collect();
    let scoring = Scoring::whole(ctx, 1);
    compare(&mut trials, &names, &tokens, scoring, &mut |_, _| {}).expect("it runs")
}

#[test]
fn fewer_bits_cost_more_and_the_widths_are_what_the_formats_say() {
    let got = run(
        &[
            "f16",
            "k=int8,v=int8",
            "k=int4,v=int4",
            "k=kitty25,v=int2,protect=f16",
            "k=int2,v=int2",
            "k=kitty25c,v=int2c,protect=f16",
            "k=int2c,v=int2c",
        ],
        768,
    );
    let [whole, int8, int4, kitty, int2, clipped_kitty, clipped] = &got[..] else {
        panic!("{} rows", got.len())
    };
    assert_eq!((whole.kl, whole.top1, whole.mean_bits), (0.0, 1.0, 16.0));
    assert_eq!(whole.ppl, whole.ppl_16bit);
    assert!(int8.kl > 0.0 && int8.kl < 1e-3, "{int8:?}");
    assert!(int4.kl > 5.0 * int8.kl && int4.kl < 0.02, "{int4:?}");
    assert!(kitty.kl > int4.kl && kitty.kl < 0.2, "{kitty:?}");
    assert!(int2.kl > kitty.kl && int2.top1 < kitty.top1, "{int2:?}");
    // Clipping costs no bits.
    assert!(clipped_kitty.kl < kitty.kl, "{clipped_kitty:?}");
    assert!(clipped.kl < 0.7 * int2.kl, "{clipped:?}");
    assert_eq!(clipped.mean_bits, int2.mean_bits);
    // Codes, 32 bits a channel of K over 128 tokens, 32 bits a token of V over 64 channels.
    let width = |k: f64, v: f64| (k + 0.25 + v + 0.5) / 2.0;
    assert_eq!(int8.mean_bits_sealed, width(8.0, 8.0));
    assert_eq!(int4.mean_bits_sealed, width(4.0, 4.0));
    assert_eq!(int2.mean_bits_sealed, width(2.0, 2.0));
    // Six blocks: the open one whole, the first and the last sealed one protected, three sealed.
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a}, expected {b}");
    let (eight, two) = (width(8.0, 8.0), width(2.0, 2.0));
    near(int2.mean_bits, (16.0 + 2.0 * eight + 3.0 * two) / 6.0);
    let kitty_bits = kitty.mean_bits_sealed;
    near(kitty.mean_bits, (3.0 * 16.0 + 3.0 * kitty_bits) / 6.0);
    assert!(got.iter().all(|c| c.mean_bits_held >= c.mean_bits));
}

#[test]
fn a_rotation_makes_2_bit_values_cheaper() {
    let plain = run(&["v=int2,protect=f16"], 768);
    let rotated = run(&["v=int2,protect=f16,rotate=v"], 768);
    assert!(
        rotated[0].kl < 0.8 * plain[0].kl,
        "{} against {}",
        rotated[0].kl,
        plain[0].kl
    );
}

#[test]
fn a_rotation_makes_2_and_3_bit_keys_cheaper() {
    let plain = run(&["k=int3,protect=f16", "k=int2,protect=f16"], 768);
    let rotated = run(
        &["k=int3,protect=f16,rotate=k", "k=int2,protect=f16,rotate=k"],
        768,
    );
    for (rotated, plain) in rotated.iter().zip(&plain) {
        let (less, kl) = (rotated.kl, plain.kl);
        assert!(less < 0.7 * kl, "{}: {less} against {kl}", plain.kv);
        // At 16 bit nothing but rounding changes.
        let ratio = rotated.ppl_16bit / plain.ppl_16bit;
        assert!((ratio - 1.0).abs() < 2e-3, "{ratio}");
    }
}
