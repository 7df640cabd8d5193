//! `ebb calibrate` of each method on a tiny model, and what its profile is good for.

use std::process::Command;

use serde_json::Value;

use crate::bench::{Bench, failure, floors};
use crate::tiny;

#[test]
fn measured_sensitivities_give_floors_within_a_budget() {
    let bench = Bench::new();
    let said = bench.good("calibrate --text text.txt --rotate-v --budget 4 --out m.json");
    assert!(
        said.contains("no others within the budget lose less"),
        "{said}"
    );
    let profile = bench.profile("m.json");
    assert_eq!(profile["method"]["name"], "measured");
    let (bits, kl) = bench.eval("profile:m.json");
    assert!(bits <= 4.0 && bits > 3.5, "{bits}");
    // Everything at its lowest format costs more than the floors.
    let (least, worst) = bench.eval("k=int2,v=int2,rotate=v");
    assert!(
        least < bits && worst > kl && kl > 0.0,
        "{kl} at {bits}, {worst} at {least}"
    );
    // Half way down, half the loss or less.
    let (half, less) = bench.eval("profile:m.json@8");
    assert!(half <= 8.0 && half > bits && less < kl, "{less} at {half}");

    // A second budget measures nothing anew.
    let figures = bench.losses("m.json.losses");
    bench.good("calibrate --text text.txt --rotate-v --budget 6 --out m.json");
    assert_eq!(bench.losses("m.json.losses"), figures);
    assert!(bench.eval("profile:m.json").0 > 5.5);
}

#[test]
fn profiles_are_of_the_weights_that_quantising_made() {
    let bench = Bench::new();
    let kvmix = "calibrate --method kvmix --text text.txt --samples 1 --out q.json";
    bench.good(&format!("{kvmix} --quantization int4"));
    let eval = "eval --text text.txt --ctx 1024 --windows 1 --kv profile:q.json,rotate=v";
    for held in ["packed", "exact"] {
        bench.good(&format!("{eval} --quantization int4 --weights {held}"));
    }
    for other in ["", "--quantization fp8"] {
        let said = bench.bad(&format!("{eval} {other}"));
        assert!(
            said.contains("and the weights after --quantization of"),
            "{said}"
        );
    }
}

/// Packed and expanded weights are computed on otherwise, so figures of one are not the other's.
#[test]
fn what_was_measured_on_packed_weights_is_not_mixed_with_expanded_ones() {
    let bench = Bench::new();
    let line = |more: &str| format!("calibrate --text text.txt --formats int4 --out m.json {more}");
    bench.good(&line("--quantization int4"));
    let packed = bench.losses("m.json.losses");
    let said = bench.bad(&line("--quantization int4 --weights exact"));
    assert!(
        said.contains("held=packed instead of") && said.contains("held=exact"),
        "{said}"
    );
    bench.good(&line("--quantization int4"));
    assert_eq!(bench.losses("m.json.losses"), packed);
    std::fs::remove_file(bench.path("m.json.losses")).expect("it is there");
    bench.good(&line("--quantization int4 --weights exact"));
    assert_ne!(bench.losses("m.json.losses")[1..], packed[1..]);
    // Plain weights are held in one way, and gradients are of expanded ones.
    let kvmix = "--method kvmix --ctx 64 --samples 1 --quantization int4";
    for more in ["", kvmix] {
        std::fs::remove_file(bench.path("m.json.losses")).expect("it is there");
        bench.good(&line(more));
        let figures = bench.losses("m.json.losses");
        bench.good(&line(&format!("{more} --weights exact")));
        assert_eq!(bench.losses("m.json.losses"), figures);
    }
}

/// Gradients are of the expanded weights; what comes of them serves packed ones, key scales and V's
/// rotation computed in every step.
#[test]
fn packed_weights_are_calibrated_and_serve_what_comes_of_it() {
    let bench = Bench::new();
    let line = "calibrate --method pmkvq --text text.txt --ctx 256 --samples 2 --rotate-v \
                --formats int4t,int4 --key-scales int4t --quantization int4 --out p.json";
    bench.good(line);
    let profile = bench.profile("p.json");
    assert!(profile["key_scales"].is_object(), "{profile}");
    let weights = profile["model"]["weights"].as_str().expect("a name");
    assert!(weights.ends_with("+int4"), "{weights}");
    let kl = |spec: &str, held: &str| {
        let line = format!(
            "eval --text text.txt --ctx 1024 --windows 1 --json --kv {spec} --quantization int4 \
             --weights {held}"
        );
        let output = bench.run(&line);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        report["kl_second_half"].as_f64().expect("a number")
    };
    let (packed, exact) = (
        kl("profile:p.json", "packed"),
        kl("profile:p.json", "exact"),
    );
    // The same function, but for how activations are rounded. That moves few codes; which ones is
    // chance: tiny models of other widths had from 0.6 to 1.4 times the loss.
    assert!(packed != exact, "{packed}");
    assert!((0.5..2.0).contains(&(packed / exact)), "{packed} {exact}");
    let flags = "--temperature 0 --max-tokens 4 --ignore-eos --json --prompt x --kv-profile p.json";
    let output = bench.run(&format!("generate {flags} --quantization int4"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[test]
fn pmkvq_sensitivities_give_floors_and_resume_sample_by_sample() {
    let bench = Bench::new();
    let line =
        "calibrate --method pmkvq --text text.txt --ctx 256 --samples 3 --budget 3.5 --out p.json";
    bench.good(line);
    let (profile, figures) = (bench.profile("p.json"), bench.losses("p.json.losses"));
    assert_eq!(profile["method"]["position_stride"], 4);
    // A loss, and each format of each page, of each sample: those of both branches below int4, and
    // of keys per token.
    assert_eq!(figures.len(), 1 + 3 * (1 + 3 * (11 + 4)));
    let of = |side: &str, format: &str, layer: usize| {
        profile["sensitivities"][side][format][layer]
            .as_f64()
            .expect("a number")
    };
    for layer in 0..3 {
        assert!(of("k", "int8", layer) > 0.0 && of("v", "int8", layer) > 0.0);
        assert!(of("k", "int4", layer) > 10.0 * of("k", "int8", layer));
        assert!(of("v", "int2c", layer) > 3.0 * of("v", "int4", layer));
    }
    assert!(bench.eval("profile:p.json").0 <= 3.5);

    // Stopped in the third sample, it goes on with that one, to the same end.
    let kept: Vec<&String> = figures[..1 + 2 * 46 + 7].iter().collect();
    let torn = kept.iter().map(|l| format!("{l}\n")).collect::<String>() + "sample2.layer0.v=in";
    std::fs::write(bench.path("p.json.losses"), torn).expect("write");
    bench.good(line);
    assert_eq!(bench.profile("p.json"), profile);
    let again = bench.losses("p.json.losses");
    assert_eq!(again[..93], figures[..93]);

    // As published: no boosted channels, nothing clipped; the same figures, so the text is not
    // looked at again.
    bench.good(&format!("{line} --formats int8,int4,int2"));
    assert_eq!(bench.losses("p.json.losses"), again);
    let paper = bench.profile("p.json");
    let floors = paper["floors"].to_string() + &paper["schedule"].to_string();
    assert!(
        floors.contains("int2\"") && !floors.contains("kitty") && !floors.contains("int2c"),
        "{floors}"
    );
    assert!(bench.eval("profile:p.json").0 <= 3.5);
    let said = bench.bad(&format!("{line} --formats int4,int2,int2c"));
    assert!(said.contains("--formats: no page shrinks from"), "{said}");
    bench.good(line);

    // It serves: in memory for a few blocks of 16 bit, the answer is computed from shrunk ones.
    let prompt = std::fs::read_to_string(bench.path("text.txt")).expect("the text");
    let prompt: String = prompt.split_whitespace().collect::<Vec<_>>().join("_");
    let flags = "--temperature 0 --max-tokens 4 --ignore-eos --json --kv-profile p.json --kv-mode \
                 static --kv-static-chunk 128 --prompt";
    let output = bench.run(&format!("generate {flags} {}", &prompt[..1200]));
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(answer["token_ids"].as_array().map(Vec::len), Some(4));
    assert!(
        answer["mean_kv_bits"].as_f64().expect("bits") < 12.0,
        "{answer}"
    );
}

#[test]
fn kvmix_scores_give_the_papers_levels_and_floors_within_a_budget() {
    let bench = Bench::new();
    let line = "calibrate --method kvmix --text text.txt --ctx 200 --samples 2 --out x.json";
    let said = bench.good(&format!("{line} --share 34"));
    assert!(
        said.contains("keeps 819 tokens at full precision after a prompt of 4096, 189 after"),
        "{said}"
    );
    let profile = bench.profile("x.json");
    let count = |side: &str, format: &str| {
        floors(&profile, side)
            .iter()
            .filter(|f| *f == format)
            .count()
    };
    assert_eq!((count("k", "int3"), count("k", "int2")), (1, 2));
    assert_eq!((count("v", "int4"), count("v", "int2")), (1, 2));
    // The layer of the highest norm, which is also the one of the highest loss at any format.
    let losses = profile["sensitivities"]["k"]["int4"]
        .as_array()
        .expect("losses");
    let loss = |layer: usize| losses[layer].as_f64().expect("a number");
    let top = (0..3)
        .max_by(|a, b| loss(*a).total_cmp(&loss(*b)))
        .expect("layers");
    assert_eq!(floors(&profile, "k")[top], "int3");
    // The paper's shares: 20 % for 3 and 4 bits, 10 % for 2.
    for side in ["k", "v"] {
        let shares = profile["recent"]["ratios"][side]
            .as_array()
            .expect("shares");
        for (layer, share) in shares.iter().enumerate() {
            let is_low = floors(&profile, side)[layer] == "int2";
            assert_eq!(share.as_f64(), Some(if is_low { 0.1 } else { 0.2 }));
        }
    }
    let (bits, _) = bench.eval("profile:x.json");
    assert!(bits < 4.0, "{bits}");

    // The same scores within a budget; nothing is computed anew.
    let figures = bench.losses("x.json.losses");
    assert_eq!(figures.len(), 1 + 2 * (1 + 3 * 2));
    bench.good(&format!("{line} --budget 6"));
    assert_eq!(bench.losses("x.json.losses"), figures);
    let (bits, _) = bench.eval("profile:x.json");
    assert!(bits <= 6.0 && bits > 5.5, "{bits}");
}

#[test]
fn what_cannot_be_calibrated_is_said_in_a_sentence() {
    let bench = Bench::new();
    let pmkvq = "calibrate --method pmkvq --text text.txt --out p.json --samples 1";
    assert!(
        bench
            .bad(&format!("{pmkvq} --ctx 256 --budget 2"))
            .contains("give at least that")
    );
    for ctx in [0, 100, 128, 300] {
        let said = bench.bad(&format!("{pmkvq} --ctx {ctx}"));
        assert!(said.contains("multiple of 128"), "{said}");
    }
    assert!(
        bench
            .bad(&format!("{pmkvq} --ctx 2048"))
            .contains("--position-stride")
    );
    assert!(
        bench
            .bad(&format!("{pmkvq} --ctx 256 --budget 17"))
            .contains("from 1 to 16")
    );
    let much = "calibrate --method pmkvq --text text.txt --out p.json --ctx 256 --samples 50";
    assert!(bench.bad(much).contains("fewer than the"));
    let kvmix = "calibrate --method kvmix --text text.txt --out x.json --samples 1 --ctx 64";
    assert!(
        bench
            .bad(&format!("{kvmix} --share 120"))
            .contains("percentage")
    );
    assert!(
        bench
            .bad(&format!("{kvmix} --high v=kitty25"))
            .contains("--high")
    );
    assert!(
        bench
            .bad(&format!("{kvmix} --recent 20"))
            .contains("such as 20/10")
    );
    assert!(
        bench
            .bad(&format!("{kvmix} --recent 95/0"))
            .contains("such as 20/10")
    );
    let measured = "calibrate --text text.txt --out m.json";
    assert!(
        bench
            .bad(&format!("{measured} --ctx 1024 --recent 20/10"))
            .contains("--recent")
    );
    assert!(
        bench
            .bad(&format!("{measured} --ctx 512"))
            .contains("at least 1024")
    );
    assert!(
        bench
            .bad(&format!("{measured} --position-stride 4"))
            .contains("kvmix and pmkvq")
    );
    // Figures of another calibration are not taken for this one's.
    bench.good(kvmix);
    assert!(
        bench
            .bad(&format!("{kvmix} --position-stride 2"))
            .contains("delete it")
    );
}

#[test]
fn a_profile_of_another_model_is_refused() {
    let bench = Bench::new();
    bench.good("calibrate --method kvmix --text text.txt --ctx 64 --samples 1 --out x.json");
    let other = tiny::model(|config| config["rope_theta"] = 20_000.0.into());
    for line in [
        "eval --text text.txt --ctx 1024 --windows 1 --kv profile:x.json",
        "generate --prompt x --kv-profile x.json",
    ] {
        let said = failure(line, &bench.run_with(other.path(), line));
        assert!(said.contains("calibrate this model"), "{said}");
    }
    let text = std::fs::read_to_string(bench.path("x.json")).expect("a profile");
    std::fs::write(bench.path("x.json"), text.replace("random-1", "random-2")).expect("write");
    let said = bench.bad("generate --prompt x --kv-profile x.json");
    assert!(said.contains("the weights of"), "{said}");
}

#[test]
fn rotated_keys_are_what_pmkvq_measures_and_the_profile_says_so() {
    let bench = Bench::new();
    let line = "calibrate --method pmkvq --text text.txt --ctx 256 --samples 1 --budget 4";
    bench.good(&format!("{line} --out p.json"));
    // Figures of other keys are not taken for them.
    let said = bench.bad(&format!("{line} --rotate-k --out p.json"));
    assert!(
        said.contains("rotate_k=true") && said.contains("delete it"),
        "{said}"
    );
    bench.good(&format!("{line} --rotate-k --out r.json"));
    let (plain, rotated) = (bench.profile("p.json"), bench.profile("r.json"));
    assert_eq!(
        (plain.get("rotate_k"), &rotated["rotate_k"]),
        (None, &true.into())
    );
    let losses = |profile: &Value, side: &str| profile["sensitivities"][side].clone();
    assert_eq!(losses(&plain, "v"), losses(&rotated, "v"));
    assert_ne!(losses(&plain, "k"), losses(&rotated, "k"));
    // The profile brings its rotation with it.
    let floors = floors(&rotated, "k")
        .into_iter()
        .zip(self::floors(&rotated, "v"));
    let pages = floors
        .enumerate()
        .map(|(layer, (k, v))| format!("layer{layer}.k={k},layer{layer}.v={v}"));
    let pages = pages.collect::<Vec<_>>().join(",");
    let of_profile = bench.eval("profile:r.json");
    assert_eq!(of_profile, bench.eval(&format!("{pages},rotate=k")));
    assert!(of_profile != bench.eval(&pages));
    let scales = bench.bad(&format!(
        "{line} --rotate-k --key-scales int2t --out s.json"
    ));
    assert!(
        scales.contains("leave out --key-scales or --rotate-k"),
        "{scales}"
    );
}

#[test]
fn profiles_are_drawn_and_compared() {
    let bench = Bench::new();
    let pmkvq =
        "calibrate --method pmkvq --text text.txt --ctx 256 --samples 1 --rotate-k --rotate-v";
    bench.good(&format!("{pmkvq} --budget 4 --out p.json"));
    bench.good("calibrate --method kvmix --text text.txt --ctx 64 --samples 1 --out x.json");
    let profile = |line: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_ebb"))
            .current_dir(bench.dir.path())
            .arg("profile")
            .args(line.split_whitespace())
            .output();
        output.expect("ebb runs")
    };
    let said = |line: &str| {
        let output = profile(line);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let shown = said("show p.json --svg bits.svg");
    for (layer, line) in shown.lines().skip(2).take(3).enumerate() {
        for (side, floors) in [
            ("k", floors(&bench.profile("p.json"), "k")),
            ("v", floors(&bench.profile("p.json"), "v")),
        ] {
            assert!(
                line.contains(&format!(" {}", floors[layer])),
                "{side}: {line}"
            );
        }
    }
    assert!(
        shown.ends_with("floors for a budget of 4 bits; keys and values rotated\n"),
        "{shown}"
    );
    let svg = std::fs::read_to_string(bench.path("bits.svg")).expect("an SVG");
    assert_eq!(svg.matches("layer 2, ").count(), 2);
    // At 16 bit nothing has come down yet.
    assert_eq!(said("show p.json --at 16").matches("16.00 f16").count(), 6);

    // KVmix' shares by what they come to.
    let shares = said("show x.json");
    assert!(
        shares.contains("recent share 0.1: keys of layers: all; values: all"),
        "{shares}"
    );

    // A profile agrees with itself.
    let itself = said("compare p.json p.json");
    assert_eq!(itself.matches(" 1.000").count(), 5 + 3, "{itself}");
    assert!(said("compare p.json x.json p.json").contains("x.json: "));
    let failed = |line: &str| failure(line, &profile(line));
    assert!(failed("show p.json --at 0.5").contains("from 1 to 16"));
    assert!(failed("show p.json --at 2").contains("ends at"));
    assert!(failed("show none.json").contains("none.json"));
    let text = std::fs::read_to_string(bench.path("x.json")).expect("a profile");
    std::fs::write(bench.path("x.json"), text.replace("random-1", "random-2")).expect("write");
    assert!(failed("compare p.json x.json").contains("the weights of"));
}
