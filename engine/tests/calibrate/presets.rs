//! The papers' modes by name: scored, served and computed again.

use serde_json::{Value, json};

use crate::bench::{Bench, failure, floors};
use crate::tiny;

/// PM-KVQ put together: keys by token with λ, one width a layer of 4 and 2 bit, and 8 bit on the
/// way down.
#[test]
fn pmkvq_as_published_scores_and_serves() {
    let bench = Bench::new();
    let formats = "--formats int8t,int4t,int2t,int8,int4,int2";
    let line = format!(
        "calibrate --method pmkvq --text text.txt --ctx 256 --samples 2 --budget 3.5 {formats} \
         --out p.json"
    );
    let floors_of = |profile: &Value| floors(profile, "k").into_iter().zip(floors(profile, "v"));
    let said = bench.good(&format!(
        "{line} --floors int4t,int2t,int4,int2 --per-layer --key-scales int2t \
         --key-scale-samples 1"
    ));
    assert!(said.contains("with key scales the error"), "{said}");
    let profile = bench.profile("p.json");
    let mut wide = 0;
    for (k, v) in floors_of(&profile) {
        assert!(
            k == "int4t" && v == "int4" || k == "int2t" && v == "int2",
            "{k} {v}"
        );
        wide += usize::from(v == "int4");
    }
    // Layers of 4.5 and of 2.5 bits.
    assert_eq!(wide, 1);
    let order = profile["schedule"].to_string();
    assert!(
        order.contains("int8t") && order.contains("\"int8\""),
        "{order}"
    );
    assert!(profile["key_scales"]["alpha"][2].is_number());
    let (bits, kl) = bench.eval("profile:p.json");
    assert!((bits - (4.5 + 2.0 * 2.5) / 3.0).abs() < 1e-9, "{bits}");
    // On the way down; and where the budgets are those of four times the length, in which the layer
    // of 4 bits has room for 16 and those of 2 for 8, beside the first block and the open one.
    let (half, less) = bench.eval("profile:p.json@6");
    assert!(half > bits && less < kl, "{less} at {half}");
    let line_eval = "eval --text text.txt --ctx 1024 --windows 1 --json --max-length 4096 \
                     --kv-preset pmkvq:p.json";
    let output = bench.run(line_eval);
    let row: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mean = (2.0 * 16.0 + 6.0 * (16.0 + 2.0 * 8.5) / 3.0) / 8.0;
    assert!(
        (row["mean_bits"].as_f64().expect("bits") - mean).abs() < 1e-9,
        "{row}"
    );
    assert!(row["kl"].as_f64().expect("a loss") < kl, "{row}");
    let prompt = std::fs::read_to_string(bench.path("text.txt")).expect("the text");
    let prompt: String = prompt.split_whitespace().collect::<Vec<_>>().join("_");
    let flags = "--max-tokens 4 --ignore-eos --json --kv-static-chunk 128 --trajectory-log \
                 log.jsonl --kv-mode static --kv-profile p.json --prompt";
    let output = bench.run(&format!("generate {flags} {}", &prompt[..1200]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(
        answer["mean_kv_bits"].as_f64().expect("bits") < 15.0,
        "{answer}"
    );
    bench.good("replay log.jsonl");

    // Pages apart, 16 bit and 8 among what the program chooses: the same figures, less lost.
    let figures = bench.losses("p.json.losses");
    bench.good(&line);
    assert_eq!(bench.losses("p.json.losses"), figures);
    let lost = |profile: &Value| -> f64 {
        let of = |(layer, (k, v)): (usize, (String, String))| {
            let loss = |side: &str, format: &str| match format {
                "f16" => 0.0,
                _ => profile["sensitivities"][side][format][layer]
                    .as_f64()
                    .expect("a loss"),
            };
            loss("k", &k) + loss("v", &v)
        };
        floors_of(profile).enumerate().map(of).sum()
    };
    assert!(lost(&bench.profile("p.json")) <= lost(&profile));

    for (more, word) in [
        ("--floors int2c", "choose of those of --formats"),
        ("--floors int4,int2", "none of them is for keys"),
        (
            "--floors int4t,int2 --per-layer",
            "--per-layer: no width is one of keys",
        ),
        ("--key-scale-samples 1", "is for --key-scales"),
        (
            "--key-scales int2t --key-scale-samples 3",
            "from 1 to the 2",
        ),
        (
            "--key-scales int2t --key-scale-samples 0",
            "from 1 to the 2",
        ),
    ] {
        let said = bench.bad(&format!("{line} {more}"));
        assert!(said.contains(word), "{more}: {said}");
    }
    for more in ["--per-layer", "--floors int2"] {
        let plain = "calibrate --method pmkvq --text text.txt --ctx 256 --samples 2 --formats \
                     int4,int2 --out p.json";
        let said = bench.bad(&format!("{plain} {more}"));
        assert!(said.contains("add --budget"), "{more}: {said}");
    }
}

/// One name is one mode, whatever reads it, and serves it, and computes its answers again.
#[test]
fn presets_score_and_serve_the_papers_modes() {
    let bench = Bench::new();
    bench.good(
        "calibrate --method kvmix --text text.txt --ctx 64 --samples 1 --share 34 --high \
         k=kvmix11,v=int4g32 --low k=int2g32,v=int2g32 --out x.json",
    );
    let keys = "calibrate --method pmkvq --text text.txt --ctx 256 --samples 1 --key-scales int2t \
                --out p.json";
    let said = bench.good(keys);
    assert!(
        said.contains("with key scales the error of attention"),
        "{said}"
    );
    let eval = "eval --text text.txt --ctx 1024 --windows 1 --json";
    let line = format!("{eval} --kv-preset");
    let report = |names: &str| -> Vec<Value> {
        let words = names.split(' ').map(|word| match word.starts_with("--") {
            true => word.to_owned(),
            false => format!("--kv-preset {word}"),
        });
        let words: Vec<String> = words.collect();
        let output = bench.run(&format!("{eval} {}", words.join(" ")));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{names}: {said}");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let rows = text.lines().map(|l| serde_json::from_str(l).expect("JSON"));
        rows.collect()
    };
    let rows = report("kivi2 kivi2-128 kivi4 kitty12 kitty12-random kvmix:x.json polarquant44 ebb");
    let number = |row: usize, key: &str| rows[row][key].as_f64().expect("a number");
    assert_eq!(rows[5]["kv"], "kvmix:x.json");
    // Groups of 32 cost bits and spare loss.
    assert_eq!(
        (number(0, "mean_bits_sealed"), number(2, "mean_bits_sealed")),
        (3.0, 5.0)
    );
    assert_eq!(number(1, "mean_bits_sealed"), 2.375);
    let kl = |row| number(row, "kl_second_half");
    assert!(
        kl(2) < kl(0) && kl(0) < kl(1),
        "{} {} {}",
        kl(2),
        kl(0),
        kl(1)
    );
    assert!(
        kl(3) < kl(4),
        "magnitude against chance: {} {}",
        kl(3),
        kl(4)
    );
    // A third of the layers: K kvmix11, V int4g32; the others int2g32.
    let bits = (4.0 + 5.0 + 2.0 * (3.0 + 3.0)) / 6.0;
    assert!((number(5, "mean_bits_sealed") - bits).abs() < 1e-9);
    // Of 8 blocks one is open and the values of one more whole.
    let kivi = (16.0 + 6.0 * 3.0 + (3.0 + 16.0) / 2.0) / 8.0;
    assert!(
        (number(0, "mean_bits") - kivi).abs() < 1e-9,
        "{}",
        number(0, "mean_bits")
    );
    // In a long answer KVmix's shares keep less than a block. Right after a prompt of 7 blocks a
    // fifth of it is one, a tenth none: the pages with more bits keep it.
    let kvmix = (16.0 + 7.0 * bits) / 8.0;
    assert!((number(5, "mean_bits") - kvmix).abs() < 1e-9);
    let after_prompt = report("--kv=profile:x.json,protect=f16,sink=0,recent=share");
    let mean = after_prompt[0]["mean_bits"].as_f64().expect("bits");
    let recent = (2.0 * 16.0 + 4.0 * 3.0) / 6.0;
    let expect = (16.0 + 6.0 * bits + recent) / 8.0;
    assert!((mean - expect).abs() < 1e-9, "{mean}, expected {expect}");
    assert!(after_prompt[0]["kl"].as_f64() < rows[5]["kl"].as_f64());
    // Other weights beside them are loaded once more, and change nothing in what is scored without.
    let scaled = report("pmkvq-token2:p.json pmkvq:p.json kivi2");
    assert_eq!(scaled[2], rows[0]);
    let mean = scaled[0]["mean_bits"].as_f64().expect("bits");
    assert!(
        (mean - (2.0 * 16.0 + 6.0 * 2.5) / 8.0).abs() < 1e-9,
        "{mean}"
    );

    // PM-KVQ's budgets: the longer a context may become, the wider are the blocks of this one.
    let of_length = |length: usize| {
        let row = &report(&format!("pmkvq:p.json --max-length={length}"))[0];
        let number = |key: &str| row[key].as_f64().expect("a number");
        (number("mean_bits"), number("kl"))
    };
    let at_16_bit = of_length(16_384);
    assert_eq!(at_16_bit, (16.0, 0.0));
    let (eight, kl_8) = of_length(4096);
    assert!(
        eight > 10.0 && eight < 10.5,
        "six blocks of 8 at 8 bits: {eight}"
    );
    let (low, kl_low) = of_length(1024);
    assert_eq!(Some(low), scaled[1]["mean_bits"].as_f64());
    assert!(low < 6.5 && kl_8 < kl_low, "{low} bits: {kl_8} {kl_low}");
    assert!(
        bench
            .bad(&format!("{line} ebb --max-length 1000"))
            .contains("--max-length")
    );

    // The same names serve.
    let prompt = std::fs::read_to_string(bench.path("text.txt")).expect("the text");
    let prompt: String = prompt.split_whitespace().collect::<Vec<_>>().join("_");
    for preset in [
        "kivi2",
        "kvmix:x.json",
        "pmkvq-token4:p.json",
        "polarquant42",
        "ebb",
    ] {
        let flags = "--max-tokens 4 --ignore-eos --json --kv-static-chunk 128 --trajectory-log \
                     log.jsonl --kv-preset";
        let output = bench.run(&format!(
            "generate {flags} {preset} --prompt {}",
            &prompt[..1200]
        ));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{preset}: {said}");
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let bits = answer["mean_kv_bits"].as_f64().expect("bits");
        // Progressive with room to spare stays whole.
        assert_eq!(bits < 15.0, preset != "ebb", "{preset}: {bits}");
        // And its answer comes out again, λ and all.
        bench.good("replay log.jsonl");
        std::fs::remove_file(bench.path("log.jsonl")).expect("a log");
    }

    assert!(
        bench
            .bad(&format!("{line} kivi3"))
            .contains("kitty25-variance")
    );
    assert!(bench.bad(&format!("{line} kvmix")).contains("kvmix:FILE"));
    // A server has real prompts; and memory, which decides in mode progressive.
    let generate = "generate --prompt a --kv-mode static --kv-floor profile:x.json,recent=share";
    assert!(bench.bad(generate).contains("recent=profile"));
    let progressive = "generate --prompt a --kv-mode progressive --kv-floor \
                       profile:x.json,recent=profile,k=int2,v=int2";
    assert!(bench.bad(progressive).contains("--kv-mode static"));
    let by_length =
        "generate --prompt a --kv-mode static --kv-floor k=int2,v=int2,shrink=by-length";
    assert!(bench.bad(by_length).contains("--kv-mode progressive"));
    assert!(
        bench
            .bad(&keys.replace("int2t", "int2"))
            .contains("int4t and int2t")
    );
    let kvmix = "calibrate --method kvmix --text text.txt --out y.json --key-scales int4t";
    assert!(bench.bad(kvmix).contains("--method pmkvq"));
    let text = std::fs::read_to_string(bench.path("p.json")).expect("a profile");
    std::fs::write(
        bench.path("p.json"),
        text.replace("\"heads\": 2", "\"heads\": 5"),
    )
    .expect("write");
    assert!(
        bench
            .bad(&format!("{line} pmkvq-token2:p.json"))
            .contains("key scales")
    );
}

/// Phi-4-mini's heads rotate in part: their pairs are other ones than those that polar pages store.
#[test]
fn polar_keys_are_refused_where_rope_rotates_a_part_of_a_head() {
    let bench = Bench::new();
    let partial = tiny::model(|config| {
        config["architectures"] = json!(["Phi3ForCausalLM"]);
        config["model_type"] = "phi3".into();
        config["partial_rotary_factor"] = 0.75.into();
    });
    let sentence = |line: &str| failure(line, &bench.run_with(partial.path(), line));
    let eval = "eval --text text.txt --ctx 256 --windows 1";
    for (flags, format) in [
        ("--kv k=polar44", "polar44"),
        ("--kv f16 --kv layer1.k=polar42g64,v=int4", "polar42g64"),
        ("--kv-preset polarquant44-paper", "polar44g64"),
        ("--kv-preset polarquant44-grid", "polar44grid"),
    ] {
        let said = sentence(&format!("{eval} {flags}"));
        let layer = usize::from(flags.contains("layer1"));
        assert!(
            said.contains(&format!("layer {layer}'s keys cannot be {format}"))
                && said.contains("RoPE rotates 48 of a head's 64 channels")
                && said.contains("k=int4"),
            "{said}"
        );
    }
    let generate = "generate --prompt a --max-tokens 1";
    for flags in [
        "--kv-preset polarquant44-page",
        "--kv-mode static --kv-floor k=polar44,v=int4",
    ] {
        let said = sentence(&format!("{generate} {flags}"));
        assert!(said.contains("layer 0's keys cannot be polar44"), "{said}");
    }
    // Others are not, nor is a model whose heads rotate whole.
    for (model, flags) in [
        (partial.path(), "--kv k=int4,v=int2"),
        (bench.model.path(), "--kv-preset polarquant42-paper"),
    ] {
        let output = bench.run_with(model, &format!("{eval} {flags}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{flags}: {said}");
    }
}
