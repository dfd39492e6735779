-- What operators set for a rate (override_rate.lua), as it is in r:<rate>.

-- In µs: what has no end is kept for ten years, so that no key needs to be kept for ever.
local WITHOUT_END = 315360000000000

-- When it ends, in ms.
local function override_ends(value)
  local ends = tonumber(value:match('^%d+'))
  return ends > 0 and ends or now() + WITHOUT_END / 1000
end

-- The value, or nil if there is none or its time is over.
local function live_override(value)
  if value and override_ends(value) > now() then return value end
end
