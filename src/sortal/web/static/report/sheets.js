// Pictures on sprite sheets.

/**
 * Locate the picture of an image on groups of sheets, which hold the pictures of all images in order, side by side.
 * `width` and `height` are those of the pictures. Returns null if the image has none.
 */
export function locatePicture(image, groups, width, height) {
  let at = image;
  for (const [group, { cell, columns, count, crisp }] of groups.entries()) {
    if (at < count) {
      if (!width[image]) return null;
      const perSheet = columns * columns;
      const onSheet = Math.min(perSheet, count - at + (at % perSheet));
      return {
        group,
        sheet: Math.floor(at / perSheet),
        crisp,
        side: Math.max(width[image], height[image]),
        w: width[image],
        h: height[image],
        x: (at % columns) * cell + Math.floor((cell - width[image]) / 2),
        y: Math.floor((at % perSheet) / columns) * cell + Math.floor((cell - height[image]) / 2),
        sw: Math.min(columns, onSheet) * cell,
        sh: Math.ceil(onSheet / columns) * cell,
      };
    }
    at -= count;
  }
  return null;
}
