#pragma once
#include "../kitty_page/device.cuh"

template <>
struct ebb::Format<ebb::kKitty25Sink32> : ebb::KittyPageFormat<2, 32> {};
