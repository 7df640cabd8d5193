//! The tensor types of GGML: which ones can be dequantised, and how many bytes a block takes.

/// A tensor type that this loader dequantises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    non_camel_case_types,
    reason = "the names under which everybody knows these types"
)]
#[allow(
    missing_docs,
    reason = "the name says it; `dequant` documents each layout"
)]
pub enum GgmlType {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
}

impl GgmlType {
    /// Every supported type.
    pub const ALL: [Self; 16] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::MXFP4,
    ];

    /// (id in the file, elements in a block, bytes of a block).
    const fn layout(self) -> (u32, usize, usize) {
        match self {
            Self::F32 => (0, 1, 4),
            Self::F16 => (1, 1, 2),
            Self::BF16 => (30, 1, 2),
            Self::Q8_0 => (8, 32, 2 + 32),
            Self::Q4_0 => (2, 32, 2 + 16),
            Self::Q4_1 => (3, 32, 2 + 2 + 16),
            Self::Q5_0 => (6, 32, 2 + 4 + 16),
            Self::Q5_1 => (7, 32, 2 + 2 + 4 + 16),
            Self::Q2_K => (10, 256, 16 + 64 + 2 + 2),
            Self::Q3_K => (11, 256, 32 + 64 + 12 + 2),
            Self::Q4_K => (12, 256, 2 + 2 + 12 + 128),
            Self::Q5_K => (13, 256, 2 + 2 + 12 + 32 + 128),
            Self::Q6_K => (14, 256, 128 + 64 + 16 + 2),
            Self::IQ4_NL => (20, 32, 2 + 16),
            Self::IQ4_XS => (23, 256, 2 + 2 + 4 + 128),
            Self::MXFP4 => (39, 32, 1 + 16),
        }
    }

    /// The id of this type in a file's tensor table.
    pub const fn id(self) -> u32 {
        self.layout().0
    }

    /// Elements in one block.
    pub const fn block_elements(self) -> usize {
        self.layout().1
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        self.layout().2
    }

    /// The type with this id, or what to call the unsupported one.
    pub(super) fn from_id(id: u32) -> Result<Self, String> {
        if let Some(kind) = Self::ALL.into_iter().find(|kind| kind.id() == id) {
            return Ok(kind);
        }
        Err(match UNSUPPORTED.iter().find(|(known, _)| *known == id) {
            Some((_, name)) => (*name).to_owned(),
            None => format!("number {id}, which is unknown"),
        })
    }

    /// The supported types by name, for error messages.
    pub(super) fn names() -> String {
        let names: Vec<String> = Self::ALL.iter().map(|kind| format!("{kind:?}")).collect();
        names.join(", ")
    }
}

/// Types that exist but have no dequantiser here.
const UNSUPPORTED: [(u32, &str); 18] = [
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];
