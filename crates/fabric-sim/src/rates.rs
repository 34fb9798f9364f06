//! Rates as topology files name them, in the codes of PortInfo: a rate enables itself and what is slower.

use fabric_model::{LinkRate, Port, Speed, Width};
use ib_wire::{ExtendedSpeed, LinkSpeed, LinkWidth, PortInfo};

/// What the cable at a port carries: the rate its file names, else the masks it sets. A manager that enables more
/// does not make it faster.
pub(crate) fn carried_by_cable(port: &Port) -> (LinkWidth, LinkSpeed, ExtendedSpeed) {
    match port.rate {
        Some(rate) => (enabled_width(rate), enabled_speed(rate), enabled_extended_speed(rate)),
        None => (port.enabled_width, port.enabled_speed, ExtendedSpeed::default()),
    }
}

/// The widths a port enables whose link has this rate.
pub(crate) fn enabled_width(rate: LinkRate) -> LinkWidth {
    match rate.width {
        Width::X1 => LinkWidth::X1,
        Width::X2 => LinkWidth::X2,
        Width::X4 => LinkWidth(LinkWidth::X1.0 | LinkWidth::X4.0),
        Width::X8 => LinkWidth::X8,
        Width::X12 => LinkWidth(LinkWidth::X1.0 | LinkWidth::X4.0 | LinkWidth::X12.0),
    }
}

/// The speeds up to QDR it enables.
pub(crate) fn enabled_speed(rate: LinkRate) -> LinkSpeed {
    match rate.speed {
        Speed::Sdr => LinkSpeed::SDR,
        Speed::Ddr => LinkSpeed(LinkSpeed::SDR.0 | LinkSpeed::DDR.0),
        _ => LinkSpeed(LinkSpeed::SDR.0 | LinkSpeed::DDR.0 | LinkSpeed::QDR.0),
    }
}

/// The speeds beyond QDR it enables.
pub(crate) fn enabled_extended_speed(rate: LinkRate) -> ExtendedSpeed {
    let fastest = match rate.speed {
        Speed::Fdr => ExtendedSpeed::FDR,
        Speed::Edr => ExtendedSpeed::EDR,
        Speed::Hdr => ExtendedSpeed::HDR,
        Speed::Ndr => ExtendedSpeed::NDR,
        _ => return ExtendedSpeed::default(),
    };
    // One bit a speed, the slowest lowest: all bits up to this one.
    ExtendedSpeed(fastest.0 | (fastest.0 - 1))
}

/// The speeds beyond QDR it could run: whatever is fast is fast up to HDR at least.
pub(crate) fn supported_extended_speed(rate: LinkRate) -> ExtendedSpeed {
    const UP_TO_HDR: u8 = ExtendedSpeed::FDR.0 | ExtendedSpeed::EDR.0 | ExtendedSpeed::HDR.0;
    match enabled_extended_speed(rate) {
        ExtendedSpeed(0) => ExtendedSpeed::default(),
        enabled => ExtendedSpeed(enabled.0 | UP_TO_HDR),
    }
}

/// What a link runs at by the registers of one of its ports. Only Mellanox' own attribute tells FDR10 from QDR.
pub(crate) fn active_rate(info: &PortInfo, is_fdr10: bool) -> LinkRate {
    let lanes = info.link_width_active.lanes();
    let width = Width::ALL.into_iter().find(|width| u32::from(width.lanes()) == lanes);
    let speed = match (info.extended_speed_active.fastest(), info.link_speed_active.fastest()) {
        (Some(ExtendedSpeed::FDR), _) => Speed::Fdr,
        (Some(ExtendedSpeed::EDR), _) => Speed::Edr,
        (Some(ExtendedSpeed::HDR), _) => Speed::Hdr,
        (Some(_), _) => Speed::Ndr,
        (None, Some(LinkSpeed::DDR)) => Speed::Ddr,
        (None, Some(LinkSpeed::QDR)) if is_fdr10 => Speed::Fdr10,
        (None, Some(LinkSpeed::QDR)) => Speed::Qdr,
        (None, _) => Speed::Sdr,
    };
    LinkRate { speed, width: width.unwrap_or(Width::X1) }
}
