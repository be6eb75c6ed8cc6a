"""Do comparisons of two runs name the operation at which a known error begins?"""
