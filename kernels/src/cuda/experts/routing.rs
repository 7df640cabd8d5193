//! Which experts rows go to, and the tiles of them: launches of `experts/route.cu`.

use std::sync::Arc;

use super::tiles::TILE_ROWS;
use super::{Experts, Run, address};
use crate::cuda::driver::{Device, Kernel, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::params::{DevicePtr, KernelParams};
use crate::model::{LayerSpec, ModelSpec, RouterScores};

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct RouteParams {
    products: DevicePtr,
    bias: DevicePtr,
    correction: DevicePtr,
    scales: DevicePtr,
    chosen: DevicePtr,
    weights: DevicePtr,
    rows: u32,
    experts: u32,
    per_token: u32,
    scores: u32,
    groups: u32,
    groups_chosen: u32,
    renormalised: u32,
    scale: f32,
    jitter: f32,
    multiplier: f32,
    cap: f32,
    reserved: u32,
}
// SAFETY: field for field `ebb::RouteParams` of experts/route.cuh.
unsafe impl KernelParams for RouteParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct SortParams {
    chosen: DevicePtr,
    places: DevicePtr,
    sorted: DevicePtr,
    tiles: DevicePtr,
    choices: u32,
    per_token: u32,
    experts: u32,
    tile_rows: u32,
}
// SAFETY: field for field `ebb::SortParams` of experts/sort.cuh.
unsafe impl KernelParams for SortParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct RouteSortParams {
    route: RouteParams,
    sort: SortParams,
}
// SAFETY: field for field `ebb::RouteSortParams` of experts/route_few.cuh.
unsafe impl KernelParams for RouteSortParams {}

/// Rows of a CTA that routes, a warp each: `kRouteWarps` of experts/route.cuh.
const ROUTE_ROWS: usize = 4;

/// Threads of the CTA that sorts: `kSortThreads` of experts/sort.cuh.
const SORT_THREADS: u32 = 1024;

/// What one CTA routes and sorts: rows, one for each of its warps, by the smaller and the larger
/// kernel, experts, and choices, one for each of its threads; `kFewExperts` of experts/route.cu and
/// `kFewChoices` of experts/sort.cuh.
const FEW_ROWS: [usize; 2] = [8, 32];
const FEW_EXPERTS: usize = 256;
const FEW_CHOICES: usize = 256;

/// Threads of the CTA that has one for each expert of each row: `kRouteFewThreads` of
/// experts/route_few.cuh.
const ROUTE_FEW_THREADS: usize = 256;

/// The kernels for a model's experts.
#[derive(Debug)]
pub(super) struct RoutingKernels {
    route: Kernel<RouteParams>,
    sort: Kernel<SortParams>,
    /// Both at once, of few rows ([`FEW_ROWS`]) and experts.
    both: [Kernel<RouteSortParams>; 2],
    /// Both at once by a thread for each expert of each row, for [`ROUTE_FEW_THREADS`] of them.
    few: Kernel<RouteSortParams>,
}

impl RoutingKernels {
    pub(super) fn new(device: &Arc<Device>, spec: &ModelSpec) -> Result<Self, CudaError> {
        let experts = spec.layers.iter().filter_map(LayerSpec::experts);
        let route = match experts.map(|experts| experts.experts).max() {
            Some(..=256) | None => "experts_route_256",
            Some(_) => "experts_route_1024",
        };
        Ok(Self {
            route: device.kernel(route, 0)?,
            sort: device.kernel("experts_sort", 0)?,
            both: [
                device.kernel("experts_route_sort_8", 0)?,
                device.kernel("experts_route_sort_32", 0)?,
            ],
            few: device.kernel("experts_route_few", 0)?,
        })
    }
}

impl Experts {
    /// Enqueues what makes choices and tiles of the router's products.
    pub(super) fn route(&self, stream: &Stream, of: &Run<'_>) -> Result<(), CudaError> {
        let Run { spec, rows, .. } = *of;
        let (scores, jitter) = match spec.routing.scores {
            RouterScores::Softmax => (0, 0.0),
            RouterScores::Sigmoid => (1, 0.0),
            RouterScores::SparseMixer { jitter } => (2, jitter),
        };
        let groups = spec.routing.groups;
        let route = RouteParams {
            products: self.scores.ptr(),
            bias: address(&of.weights.router_bias),
            correction: address(&of.weights.correction),
            scales: address(&of.weights.scales),
            chosen: self.chosen.ptr(),
            weights: self.weights.ptr(),
            rows: rows as u32,
            experts: spec.experts as u32,
            per_token: spec.per_token as u32,
            scores,
            groups: groups.map_or(0, |groups| groups.groups as u32),
            groups_chosen: groups.map_or(0, |groups| groups.chosen as u32),
            renormalised: u32::from(spec.routing.renormalised),
            scale: spec.routing.scale,
            jitter,
            multiplier: spec.router_norm.map_or(1.0, |norm| norm.multiplier),
            cap: spec.router_cap.unwrap_or(0.0),
            reserved: 0,
        };
        let sort = SortParams {
            chosen: self.chosen.ptr(),
            places: self.places.ptr(),
            sorted: self.sorted.ptr(),
            tiles: self.tiles.ptr(),
            choices: of.choices as u32,
            per_token: spec.per_token as u32,
            experts: spec.experts as u32,
            tile_rows: TILE_ROWS[of.tile] as u32,
        };
        let kernels = &self.routing;
        let sorts = (1, 1);
        let few = FEW_ROWS.iter().position(|few| rows <= *few);
        let few = few.filter(|_| spec.experts <= FEW_EXPERTS && of.choices <= FEW_CHOICES);
        if let Some(few) = few {
            let both = RouteSortParams { route, sort };
            let threads = (rows * spec.experts.next_multiple_of(32)).max(of.choices);
            let is_simple = groups.is_none() && scores != 2;
            let (kernel, threads) = match threads <= ROUTE_FEW_THREADS && is_simple {
                true => (&kernels.few, ROUTE_FEW_THREADS as u32),
                false => (&kernels.both[few], 32 * FEW_ROWS[few] as u32),
            };
            // SAFETY: as for the launches of `Experts::run`.
            return unsafe { kernel.launch(stream, sorts, threads, &both) };
        }
        let routes = (rows.div_ceil(ROUTE_ROWS) as u32, 1);
        let threads = 32 * ROUTE_ROWS as u32;
        // SAFETY: as for the launches of `Experts::run`.
        unsafe {
            kernels.route.launch(stream, routes, threads, &route)?;
            kernels.sort.launch(stream, sorts, SORT_THREADS, &sort)
        }
    }
}
