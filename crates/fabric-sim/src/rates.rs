//! Link rates of the topology in the encodings of PortInfo. A rate enables itself and all slower ones.

use fabric_model::{LinkRate, Port, Speed, Width};
use ib_wire::{ExtendedSpeed, LinkSpeed, LinkWidth};

/// Width and speeds that the cable at a port carries: the rate in the topology, else the enabled masks there.
/// Enabling more does not make the link faster.
pub(crate) fn carried_by_cable(port: &Port) -> (LinkWidth, LinkSpeed, ExtendedSpeed) {
    match port.rate {
        Some(rate) => (enabled_width(rate), enabled_speed(rate), enabled_extended_speed(rate)),
        None => (port.enabled_width, port.enabled_speed, ExtendedSpeed::default()),
    }
}

/// The rate at which a device trains that supports speeds up to `speed_max`.
pub(crate) fn at_most(rate: LinkRate, speed_max: Speed) -> LinkRate {
    LinkRate { speed: rate.speed.min(speed_max), ..rate }
}

/// LinkWidthEnabled of a port whose link has this rate.
pub(crate) fn enabled_width(rate: LinkRate) -> LinkWidth {
    match rate.width {
        Width::X1 => LinkWidth::X1,
        Width::X2 => LinkWidth::X2,
        Width::X4 => LinkWidth(LinkWidth::X1.0 | LinkWidth::X4.0),
        Width::X8 => LinkWidth::X8,
        Width::X12 => LinkWidth(LinkWidth::X1.0 | LinkWidth::X4.0 | LinkWidth::X12.0),
    }
}

/// LinkSpeedEnabled, up to QDR.
pub(crate) fn enabled_speed(rate: LinkRate) -> LinkSpeed {
    match rate.speed {
        Speed::Sdr => LinkSpeed::SDR,
        Speed::Ddr => LinkSpeed(LinkSpeed::SDR.0 | LinkSpeed::DDR.0),
        _ => LinkSpeed(LinkSpeed::SDR.0 | LinkSpeed::DDR.0 | LinkSpeed::QDR.0),
    }
}

/// LinkSpeedExtEnabled, for speeds beyond QDR.
pub(crate) fn enabled_extended_speed(rate: LinkRate) -> ExtendedSpeed {
    let fastest = match rate.speed {
        Speed::Fdr => ExtendedSpeed::FDR,
        Speed::Edr => ExtendedSpeed::EDR,
        Speed::Hdr => ExtendedSpeed::HDR,
        Speed::Ndr => ExtendedSpeed::NDR,
        _ => return ExtendedSpeed::default(),
    };
    // One bit per speed in ascending order: this bit and all below.
    ExtendedSpeed(fastest.0 | (fastest.0 - 1))
}

/// LinkSpeedExtSupported. Ports that run an extended speed support all of them up to HDR, as far as the device
/// does.
pub(crate) fn supported_extended_speed(rate: LinkRate, speed_max: Speed) -> ExtendedSpeed {
    let usual = enabled_extended_speed(LinkRate { speed: speed_max.min(Speed::Hdr), ..rate });
    match enabled_extended_speed(rate) {
        ExtendedSpeed(0) => ExtendedSpeed::default(),
        enabled => ExtendedSpeed(enabled.0 | usual.0),
    }
}
